// checkpoint_test: the records of checkpoints in memory, as far as the launcher reads and writes them.
#include "rescue/checkpoint.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr uint32_t kChunk = 1 << 12;

int failures = 0;

void expect(bool holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "checkpoint_test.cc:%d: %s\n", line, what);
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)

template <typename Number>
void put(std::string* bytes, size_t at, Number number) {
  memcpy(bytes->data() + at, &number, sizeof(number));
}

void seal(std::string* bytes, size_t at, size_t count) {
  put(bytes, at + count, falcon::crc32(bytes->data() + at, count));
}

// A buffer with a whole checkpoint, which is damaged by `change` before its record gets its checksum.
template <typename Change>
std::string buffer(const Change& change) {
  std::string bytes(6 * size_t{kChunk}, '\0');
  for (size_t at = 2 * size_t{kChunk}; at < bytes.size(); ++at) bytes[at] = static_cast<char>(at * 7 % 251);
  memcpy(bytes.data(), "FALCONCK", 8);
  put<uint32_t>(&bytes, 8, 1);
  put<uint32_t>(&bytes, 12, kChunk);
  put<uint64_t>(&bytes, 16, 2);               // generation
  put<uint32_t>(&bytes, 24, 3);               // rank
  put<uint32_t>(&bytes, 28, 4);               // of
  put<uint64_t>(&bytes, 32, 40);              // step
  put<uint64_t>(&bytes, 40, 9);               // sequence
  put<uint64_t>(&bytes, 56, 2 * kChunk);      // index
  put<uint64_t>(&bytes, 80, 5 * kChunk - 3);  // end
  change(&bytes);
  seal(&bytes, 0, 92);
  return bytes;
}

std::optional<falcon::CheckpointPage> read(const std::string& bytes) {
  return falcon::read_checkpoint(bytes.data(), bytes.size());
}

template <typename Change>
bool refused(const Change& change) {
  return !read(buffer(change));
}

void sums() {
  const std::string digits = "123456789";
  EXPECT(falcon::crc32(digits.data(), digits.size()) == 0xCBF43926);
  EXPECT(falcon::crc32(digits.data() + 4, 5, falcon::crc32(digits.data(), 4)) == 0xCBF43926);
  EXPECT(falcon::crc32("", 0) == 0);
}

void whole() {
  std::string bytes = buffer([](std::string*) {});
  auto page = read(bytes);
  EXPECT(page && !page->verified && !page->in_folder && page->folder.empty());
  if (!page) return;
  const std::string table = falcon::checksums(bytes.data(), *page);
  EXPECT(table.size() == 12);
  memcpy(bytes.data() + falcon::kChecksOffset, table.data(), table.size());
  const std::string record = falcon::verified_record(*page, table);
  memcpy(bytes.data() + falcon::kVerifiedOffset, record.data(), record.size());
  page = read(bytes);
  EXPECT(page && page->verified);
  put<uint64_t>(&bytes, falcon::kVerifiedOffset + 8, 8);
  seal(&bytes, falcon::kVerifiedOffset, 24);
  page = read(bytes);
  EXPECT(page && !page->verified);  // the checksums are of the save before
}

void notes() {
  std::string bytes = buffer([](std::string*) {});
  memcpy(bytes.data() + 3072, "FALCONNT", 8);
  put<uint64_t>(&bytes, 3072 + 12, 9);
  seal(&bytes, 3072, 20);
  const std::string folder = "/checkpoints/run 1";
  memcpy(bytes.data() + 3328, "FALCONFD", 8);
  put(&bytes, 3328 + 8, static_cast<uint32_t>(folder.size()));
  put<uint32_t>(&bytes, 3328 + 12, 1);
  put<uint32_t>(&bytes, 3328 + 16, 2);
  memcpy(bytes.data() + 3328 + 20, folder.data(), folder.size());
  seal(&bytes, 3328, 20 + folder.size());
  auto page = read(bytes);
  EXPECT(page && page->in_folder);
  EXPECT(page && page->folder == folder);
  EXPECT(page && page->file_name() == "step-000000000040.rank-1-of-2.falcon");
  put<uint32_t>(&bytes, 3328 + 8, 0xFFFFFFF0);
  page = read(bytes);
  EXPECT(page && page->folder.empty());
}

void hostile() {
  EXPECT(!read(std::string(100, 'x')));
  EXPECT(!read(std::string(3 * size_t{kChunk}, '\0')));
  EXPECT(refused([](std::string* bytes) { put<uint32_t>(bytes, 8, 2); }));
  EXPECT(refused([](std::string* bytes) { put<uint32_t>(bytes, 12, 0); }));
  EXPECT(refused([](std::string* bytes) { put<uint32_t>(bytes, 12, 1); }));  // the table would lie over the index
  EXPECT(refused([](std::string* bytes) { put<uint64_t>(bytes, 80, 6 * kChunk + 1); }));
  EXPECT(refused([](std::string* bytes) { put<uint64_t>(bytes, 80, ~uint64_t{0}); }));
  EXPECT(refused([](std::string* bytes) { put<uint64_t>(bytes, 56, 5 * kChunk); }));
  EXPECT(refused([](std::string* bytes) { put<uint64_t>(bytes, 56, 100); }));
  std::string flipped = buffer([](std::string*) {});
  flipped[33] ^= 1;
  EXPECT(!read(flipped));
}

}  // namespace

int main() {
  sums();
  whole();
  notes();
  hostile();
  return failures == 0 ? 0 : 1;
}
