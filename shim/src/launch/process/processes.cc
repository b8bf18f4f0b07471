#include "process/processes.h"

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "common/files.h"

namespace falcon {
namespace {

constexpr int kMostReadings = 8;

}  // namespace

void each_number(const std::string& folder, const std::function<void(pid_t)>& visit) {
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    const char* name = entry->d_name;
    if (std::all_of(name, name + strlen(name), [](char c) { return c >= '0' && c <= '9'; })) {
      visit(static_cast<pid_t>(strtol(name, nullptr, 10)));
    }
  }
  closedir(entries);
}

char state_of(const std::string& stat, Process* process) {
  const size_t name_end = stat.rfind(')');
  char state = 0;
  int parent = 0;
  int group = 0;
  long threads = 0;
  unsigned long long started = 0;
  // Fields 3, 4, 5, 20 and 22 of proc(5).
  constexpr char kFields[] = " %c %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %llu";
  if (name_end == std::string::npos ||
      sscanf(stat.c_str() + name_end + 1, kFields, &state, &parent, &group, &threads, &started) != 5) {
    return 0;
  }
  process->parent = parent;
  process->group = group;
  process->ended = (state == 'Z' && threads <= 1) || state == 'X';  // a main thread may end before the others
  process->stopped = state == 'T';
  process->started = started;
  return state;
}

namespace {

std::vector<Process> list_once() {
  std::vector<Process> found;
  each_number("/proc", [&](pid_t pid) {
    Process process;
    process.pid = pid;
    if (state_of(read_file("/proc/" + std::to_string(pid) + "/stat"), &process) != 0) found.push_back(process);
  });
  return found;
}

bool is_whole(const std::vector<Process>& processes) {
  std::set<pid_t> pids{0};
  for (const Process& process : processes) pids.insert(process.pid);
  return std::all_of(processes.begin(), processes.end(),
                     [&](const Process& process) { return pids.count(process.parent) != 0; });
}

}  // namespace

// A parent that ends while we read is missing, and what is below it would not be found: then we read again.
std::vector<Process> list_processes() {
  std::vector<Process> found = list_once();
  for (int again = 0; again < kMostReadings && !is_whole(found); ++again) found = list_once();
  return found;
}

std::vector<pid_t> descendants(pid_t root, const std::vector<Process>& processes) {
  std::vector<pid_t> found{root};
  for (size_t i = 0; i < found.size(); ++i) {
    for (const Process& process : processes) {
      if (process.parent == found[i]) found.push_back(process.pid);
    }
  }
  return found;
}

Dispositions parse_dispositions(const std::string& status) {
  const auto mask = [&status](const char* name) -> uint64_t {
    const size_t at = status.find(name);
    return at == std::string::npos ? 0 : strtoull(status.c_str() + at + strlen(name), nullptr, 16);
  };
  return {mask("\nSigCgt:"), mask("\nSigIgn:"), mask("\nSigBlk:"), mask("\nShdPnd:")};
}

Dispositions read_dispositions(pid_t pid) {
  return parse_dispositions(read_file("/proc/" + std::to_string(pid) + "/status"));
}

uint64_t read_awaited(pid_t pid) {
  const std::string call = read_file("/proc/" + std::to_string(pid) + "/syscall");
  long number = -1;
  unsigned long long set = 0;
  if (sscanf(call.c_str(), "%ld %llx", &number, &set) != 2 || number != SYS_rt_sigtimedwait) return 0;
  uint64_t awaited = 0;
  const iovec local{&awaited, sizeof(awaited)};
  void* there = nullptr;
  memcpy(&there, &set, sizeof(there));
  const iovec remote{there, sizeof(awaited)};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0) == sizeof(awaited) ? awaited : ~uint64_t{0};
}

bool handles(pid_t pid, int signal) { return (read_dispositions(pid).caught >> (signal - 1) & 1) != 0; }

std::string read_program(pid_t pid) {
  char path[PATH_MAX];
  const ssize_t length = readlink(("/proc/" + std::to_string(pid) + "/exe").c_str(), path, sizeof(path));
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

bool has_open(pid_t pid, const std::string& path) {
  struct stat wanted = {};
  if (stat(path.c_str(), &wanted) != 0) return false;
  bool found = false;
  const std::string files = "/proc/" + std::to_string(pid) + "/fd";
  each_number(files, [&](pid_t number) {
    struct stat open = {};
    found = found || (stat((files + "/" + std::to_string(number)).c_str(), &open) == 0 &&
                      open.st_dev == wanted.st_dev && open.st_ino == wanted.st_ino);
  });
  return found;
}

}  // namespace falcon
