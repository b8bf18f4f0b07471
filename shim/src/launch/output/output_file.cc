#include "output/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/clock.h"

namespace falcon {
namespace {

// A file system that cannot set space aside refuses the writes later, should it be full.
bool set_aside(int file) {
  return fallocate(file, 0, 0, kOutputHeaderBytes + kOutputBytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
}

}  // namespace

OutputFile::~OutputFile() {
  if (file_ >= 0) close(file_);
}

bool OutputFile::make(const std::string& path, int generation, int local_rank) {
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());
  file_ = open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file_ < 0) return false;
  OutputHeader header{};
  header.magic = kOutputMagic;
  header.version = kOutputVersion;
  header.header_bytes = kOutputHeaderBytes;
  header.capacity = kOutputBytes;
  header.generation = static_cast<uint32_t>(generation);
  header.local_rank = local_rank;
  header.made_unix_ns = static_cast<uint64_t>(unix_ns());
  fchmod(file_, 0644);  // whatever the umask: the agent is another user
  if (set_aside(file_) && pwrite(file_, &header, sizeof(header), 0) == static_cast<ssize_t>(sizeof(header)) &&
      rename(fresh.c_str(), path.c_str()) == 0) {
    return true;
  }
  const int error = errno;
  close(file_);
  file_ = -1;
  unlink(fresh.c_str());
  errno = error;
  return false;
}

void OutputFile::append(int stream, const char* bytes, size_t size) {
  if (size == 0) return;
  if (within_line_ && stream != stream_) write("\n", 1);
  write(bytes, size);
  stream_ = stream;
  within_line_ = bytes[size - 1] != '\n' && bytes[size - 1] != '\r';
}

void OutputFile::write(const char* bytes, size_t size) {
  while (file_ >= 0 && size > 0) {
    const size_t place = total_ % kOutputBytes;
    const size_t count = std::min({size, kMostAhead, kOutputBytes - place});
    (void)!pwrite(file_, bytes, count, static_cast<off_t>(kOutputHeaderBytes + place));
    total_ += count;
    const uint64_t now[] = {total_, static_cast<uint64_t>(unix_ns())};
    (void)!pwrite(file_, now, sizeof(now), offsetof(OutputHeader, total));
    bytes += count;
    size -= count;
  }
}

}  // namespace falcon
