#include "rescue/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

namespace falcon {
namespace {

constexpr char kMagic[] = "FALCONCK";
constexpr char kVerifiedMagic[] = "FALCONVF";
constexpr char kNotesMagic[] = "FALCONNT";
constexpr char kFolderMagic[] = "FALCONFD";
constexpr size_t kMagicBytes = 8;
constexpr uint32_t kVersion = 1;
constexpr size_t kNotesOffset = 3072;
constexpr size_t kFolderOffset = 3328;
constexpr size_t kCommitBytes = 92;
constexpr size_t kVerifiedBytes = 24;
constexpr size_t kNotesBytes = 20;
constexpr size_t kFolderBytes = 20;  // before the path itself
constexpr size_t kCrcBytes = 4;
constexpr uint32_t kPolynomial = 0xEDB88320;
constexpr size_t kSlices = 8;  // bytes in a step

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (size_t slice = 1; slice < kSlices; ++slice) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

template <typename Number>
Number number_at(const char* bytes) {  // little-endian, as the machines are that the launcher is built for
  Number number{};
  memcpy(&number, bytes, sizeof(number));
  return number;
}

template <typename Number>
void append(std::string* to, Number number) {
  to->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// Whether a record of so many bytes begins so, and ends with its own checksum.
bool is_record(const char* record, const char* magic, size_t bytes) {
  return memcmp(record, magic, kMagicBytes) == 0 && crc32(record, bytes) == number_at<uint32_t>(record + bytes);
}

uint64_t chunk_count(const CheckpointPage& page) {
  return (page.end - page.begin + page.chunk_bytes - 1) / page.chunk_bytes;
}

void read_folder(const char* page, CheckpointPage* into) {
  const char* record = page + kFolderOffset;
  const uint32_t bytes = number_at<uint32_t>(record + kMagicBytes);
  if (bytes > kCheckpointPage - kFolderOffset - kFolderBytes - kCrcBytes) return;
  if (!is_record(record, kFolderMagic, kFolderBytes + bytes)) return;
  into->folder.assign(record + kFolderBytes, bytes);
  into->part = number_at<uint32_t>(record + 12);
  into->parts = number_at<uint32_t>(record + 16);
}

}  // namespace

std::string CheckpointPage::file_name() const {
  char name[96];
  snprintf(name, sizeof(name), "step-%012llu.rank-%u-of-%u.falcon", static_cast<unsigned long long>(step), part, parts);
  return name;
}

std::optional<CheckpointPage> read_checkpoint(const char* page, uint64_t size) {
  if (size < kCheckpointPage || !is_record(page, kMagic, kCommitBytes)) return {};
  if (number_at<uint32_t>(page + 8) != kVersion) return {};
  CheckpointPage found;
  found.chunk_bytes = number_at<uint32_t>(page + 12);
  found.generation = number_at<uint64_t>(page + 16);
  found.rank = number_at<uint32_t>(page + 24);
  found.world_size = number_at<uint32_t>(page + 28);
  found.step = number_at<uint64_t>(page + 32);
  found.sequence = number_at<uint64_t>(page + 40);
  found.begin = number_at<uint64_t>(page + 56);
  found.end = number_at<uint64_t>(page + 80);
  if (found.chunk_bytes == 0 || found.begin > found.end || found.end > size) return {};
  const uint64_t chunks = chunk_count(found);
  if (chunks > size / kCrcBytes || kChecksOffset + kCrcBytes * chunks > found.begin) return {};
  const char* verified = page + kVerifiedOffset;
  found.verified = is_record(verified, kVerifiedMagic, kVerifiedBytes) &&
                   number_at<uint64_t>(verified + 8) == found.sequence && number_at<uint32_t>(verified + 16) == chunks;
  const char* notes = page + kNotesOffset;
  found.in_folder = is_record(notes, kNotesMagic, kNotesBytes) && number_at<uint64_t>(notes + 12) == found.sequence;
  read_folder(page, &found);
  return found;
}

uint32_t crc32(const char* bytes, size_t count, uint32_t crc) {
  static const Tables tables = make_tables();
  crc = ~crc;
  for (; count >= kSlices; bytes += kSlices, count -= kSlices) {
    const uint32_t low = number_at<uint32_t>(bytes) ^ crc;
    const uint32_t high = number_at<uint32_t>(bytes + 4);
    crc = tables[7][low & 0xFF] ^ tables[6][(low >> 8) & 0xFF] ^ tables[5][(low >> 16) & 0xFF] ^ tables[4][low >> 24] ^
          tables[3][high & 0xFF] ^ tables[2][(high >> 8) & 0xFF] ^ tables[1][(high >> 16) & 0xFF] ^
          tables[0][high >> 24];
  }
  for (; count > 0; ++bytes, --count) crc = (crc >> 8) ^ tables[0][(crc ^ static_cast<uint8_t>(*bytes)) & 0xFF];
  return ~crc;
}

std::string checksums(const char* buffer, const CheckpointPage& page) {
  std::string table;
  for (uint64_t at = page.begin; at < page.end; at += page.chunk_bytes) {
    append(&table, crc32(buffer + at, static_cast<size_t>(std::min<uint64_t>(page.chunk_bytes, page.end - at))));
  }
  return table;
}

std::string verified_record(const CheckpointPage& page, const std::string& table) {
  std::string record(kVerifiedMagic, kMagicBytes);
  append(&record, page.sequence);
  append(&record, static_cast<uint32_t>(table.size() / kCrcBytes));
  append(&record, crc32(table.data(), table.size()));
  append(&record, crc32(record.data(), record.size()));
  return record;
}

}  // namespace falcon
