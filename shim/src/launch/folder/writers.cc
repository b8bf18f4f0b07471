#include "folder/writers.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <vector>

#include "common/files.h"
#include "process/processes.h"

namespace falcon {
namespace {

constexpr unsigned kExiting = 0x4;  // PF_EXITING: its files are being closed, or are closed already
constexpr char kDeleted[] = " (deleted)";

bool may_write(const std::string& info) {
  const size_t flags = info.find("flags:");
  return flags != std::string::npos &&
         (strtoul(info.c_str() + flags + strlen("flags:"), nullptr, 8) & O_ACCMODE) != O_RDONLY;
}

// The path below `prefix`, or empty for one elsewhere or without a name.
std::string below(const std::string& prefix, const std::string& path) {
  if (path.compare(0, prefix.size(), prefix) != 0) return "";
  const size_t length = path.size();
  const size_t suffix = strlen(kDeleted);
  if (length > suffix && path.compare(length - suffix, suffix, kDeleted) == 0) return "";
  return path.substr(prefix.size());
}

void add_opened(const std::string& process, const std::string& prefix, std::set<std::string>* found) {
  each_number(process + "/fd", [&](pid_t number) {
    char target[PATH_MAX];
    const std::string file = std::to_string(number);
    const ssize_t length = readlink((process + "/fd/" + file).c_str(), target, sizeof(target));
    if (length <= 0) return;
    const std::string path = below(prefix, std::string(target, static_cast<size_t>(length)));
    if (!path.empty() && may_write(read_file(process + "/fdinfo/" + file))) found->insert(path);
  });
}

void add_mapped(const std::string& process, const std::string& prefix, std::set<std::string>* found) {
  std::istringstream lines(read_file(process + "/maps"));
  for (std::string line; std::getline(lines, line);) {
    const size_t rights = line.find(' ');
    const size_t path = line.find('/');
    if (rights == std::string::npos || path == std::string::npos || path < rights + 5) continue;
    const std::string name = below(prefix, line.substr(path));
    if (!name.empty() && line[rights + 2] == 'w' && line[rights + 4] == 's') found->insert(name);
  }
}

uint64_t little(const unsigned char* bytes, size_t count) {
  uint64_t value = 0;
  for (size_t at = count; at > 0; --at) value = value << 8U | bytes[at - 1];
  return value;
}

// The end of a zip archive without a comment: at most the records of a large one, and the usual one.
constexpr size_t kEndBytes = 22;
constexpr size_t kLargeEndBytes = 56;
constexpr size_t kPlaceBytes = 20;  // says where the large one's record is

bool is_whole_zip(int file, uint64_t size) {
  unsigned char bytes[kLargeEndBytes + kPlaceBytes + kEndBytes];
  const auto count = static_cast<size_t>(std::min<uint64_t>(size, sizeof(bytes)));
  if (count < kEndBytes || pread(file, bytes, 4, 0) != 4 || memcmp(bytes, "PK\3\4", 4) != 0) return false;
  if (pread(file, bytes, count, static_cast<off_t>(size - count)) != static_cast<ssize_t>(count)) return false;
  const unsigned char* end = bytes + count - kEndBytes;
  if (memcmp(end, "PK\5\6", 4) != 0) return false;
  uint64_t listed = little(end + 12, 4);
  uint64_t at = little(end + 16, 4);
  uint64_t after = kEndBytes;
  if (count == sizeof(bytes) && memcmp(bytes + kLargeEndBytes, "PK\6\7", 4) == 0) {
    if (memcmp(bytes, "PK\6\6", 4) != 0) return false;
    listed = little(bytes + 40, 8);
    at = little(bytes + 48, 8);
    after = sizeof(bytes);
  }
  return at <= size && listed <= size && at + listed + after == size;
}

}  // namespace

std::set<std::string> open_for_writing(const std::string& root) {
  std::set<std::string> found;
  const std::string prefix = root + "/";
  const pid_t self = getpid();
  each_number("/proc", [&](pid_t pid) {
    if (pid == self) return;
    const std::string process = "/proc/" + std::to_string(pid);
    add_opened(process, prefix, &found);
    add_mapped(process, prefix, &found);
  });
  return found;
}

std::set<Life> living(pid_t root) {
  std::vector<Process> processes;
  std::map<pid_t, Life> lives;
  each_number("/proc", [&](pid_t pid) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    Process process;
    process.pid = pid;
    if (state_of(stat, &process) == 0) return;
    processes.push_back(process);
    unsigned flags = 0;
    constexpr char kFlags[] = " %*c %*s %*s %*s %*s %*s %u";  // field 9 of proc(5)
    if (sscanf(stat.c_str() + stat.rfind(')') + 1, kFlags, &flags) == 1 && !process.ended && (flags & kExiting) == 0)
      lives[pid] = {pid, process.started};
  });
  std::set<Life> found;
  const pid_t self = getpid();
  for (const pid_t pid : descendants(root, processes)) {
    const auto life = lives.find(pid);
    if (pid != self && life != lives.end()) found.insert(life->second);
  }
  return found;
}

bool ends_as_whole(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return false;
  struct stat about{};
  const bool whole =
      fstat(file, &about) == 0 && S_ISREG(about.st_mode) && is_whole_zip(file, static_cast<uint64_t>(about.st_size));
  close(file);
  return whole;
}

}  // namespace falcon
