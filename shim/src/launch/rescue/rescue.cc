#include "rescue/rescue.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "common/files.h"
#include "rescue/checkpoint.h"

namespace falcon {
namespace {

constexpr size_t kMostNames = 1 << 16;
constexpr size_t kCommitRecord = 96;  // it identifies a save: rank, step, generation, sequence, time

// A rank's buffer, mapped as long as this process lives.
struct Buffer {
  char* bytes = nullptr;
  CheckpointPage page;
};

// Maps a buffer that holds a whole checkpoint.
std::optional<Buffer> open_buffer(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return {};
  struct stat about{};
  void* mapped = MAP_FAILED;
  if (fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size >= static_cast<off_t>(kCheckpointPage)) {
    mapped = mmap(nullptr, static_cast<size_t>(about.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (mapped == MAP_FAILED) return {};
  Buffer buffer{static_cast<char*>(mapped), {}};
  const auto page = read_checkpoint(buffer.bytes, static_cast<uint64_t>(about.st_size));
  if (!page) return {};
  buffer.page = *page;
  return buffer;
}

// Whether no process of a rank uses its buffers: then they may be written to.
bool take_lock(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);  // open until this process ends
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return file >= 0 && fcntl(file, F_SETLK, &whole) == 0;
}

// The thread that adds them may have died with its process. Without them no copy in another pod can be made.
void add_checksums(const Buffer& buffer) {
  const std::string table = checksums(buffer.bytes, buffer.page);
  memcpy(buffer.bytes + kChecksOffset, table.data(), table.size());
  const std::string record = verified_record(buffer.page, table);
  memcpy(buffer.bytes + kVerifiedOffset, record.data(), record.size());
}

// Writes a checkpoint's file under another name and renames it. False with errno set; ECANCELED: a rank that lives on
// has written to the buffer meanwhile.
bool put_file(const Buffer& buffer, const std::string& before, const std::string& path) {
  const std::string partial = path + "." + std::to_string(getpid()) + ".tmp";
  const int file = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (file < 0) return false;
  bool done = write_all(file, buffer.bytes, static_cast<size_t>(buffer.page.end)) && fsync(file) == 0;
  int error = errno;
  close(file);
  if (done && memcmp(buffer.bytes, before.data(), before.size()) != 0) {
    done = false;
    error = ECANCELED;
  }
  if (done) {
    done = rename(partial.c_str(), path.c_str()) == 0 && sync_folder(buffer.page.folder);
    error = errno;
  }
  if (!done) unlink(partial.c_str());
  errno = error;
  return done;
}

// Brings one checkpoint to its folder; false where it is not there.
bool bring(const Buffer& buffer) {
  const CheckpointPage& page = buffer.page;
  if (page.folder.empty() || page.in_folder) return true;
  const std::string path = page.folder + "/" + page.file_name();
  const std::string record(buffer.bytes, kCommitRecord);
  if (read_regular(path, kCommitRecord) == record) return true;  // its thread died before it could note it down
  const auto step = static_cast<unsigned long long>(page.step);
  if (put_file(buffer, record, path)) {
    fprintf(stderr, "falcon-launch: rank %u's checkpoint of step %llu is brought from memory to %s: the pod ends\n",
            page.rank, step, path.c_str());
    return true;
  }
  if (errno == ECANCELED) return false;  // the rank saves: its newer checkpoint is looked at when the rank has ended
  fprintf(stderr, "falcon-launch: rank %u's checkpoint of step %llu stays in memory, and is lost with it: %s: %s\n",
          page.rank, step, path.c_str(), strerror(errno));
  return false;
}

// The newest checkpoint of a rank, then the one before it: ranks may be one save apart, and only what all ranks have
// counts.
bool bring_rank(const std::string& store, const std::string& local_rank, std::vector<Buffer> buffers) {
  std::sort(buffers.begin(), buffers.end(),
            [](const Buffer& one, const Buffer& other) { return one.page.sequence > other.page.sequence; });
  const bool ours = take_lock(store + "/rank-" + local_rank + ".lock");
  bool all = true;
  for (const Buffer& buffer : buffers) {
    if (ours && !buffer.page.verified) add_checksums(buffer);
    all = bring(buffer) && all;
  }
  return all;
}

}  // namespace

int rescue(const std::string& store) {
  std::map<std::string, std::vector<Buffer>> found;  // by local rank
  for (const std::string& name : list_files(store, kMostNames)) {
    const size_t dot = name.rfind('.');
    if (name.rfind("rank-", 0) != 0 || dot == std::string::npos) continue;
    std::string path = store;
    path.append("/").append(name);
    const auto buffer = open_buffer(path);
    if (buffer) found[name.substr(5, dot - 5)].push_back(*buffer);
  }
  std::atomic<bool> all{true};
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (const auto& [local_rank, buffers] : found) {
    threads.emplace_back([&store, &all, local_rank = local_rank, buffers = buffers] {
      if (!bring_rank(store, local_rank, buffers)) all = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all ? 0 : 1;
}

}  // namespace falcon
