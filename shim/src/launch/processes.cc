#include "processes.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "files.h"

namespace falcon {

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
  unsigned long long started = 0;
  // Fields 3, 4 and 22 of proc(5).
  constexpr char kFields[] = " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
  if (name_end == std::string::npos || sscanf(stat.c_str() + name_end + 1, kFields, &state, &parent, &started) != 3) {
    return 0;
  }
  process->parent = parent;
  process->ended = state == 'Z' || state == 'X';
  process->started = started;
  return state;
}

std::vector<Process> list_processes() {
  std::vector<Process> found;
  each_number("/proc", [&](pid_t pid) {
    Process process;
    process.pid = pid;
    if (state_of(read_file("/proc/" + std::to_string(pid) + "/stat"), &process) != 0) found.push_back(process);
  });
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

bool handles(pid_t pid, int signal) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const size_t caught = status.find("\nSigCgt:");
  if (caught == std::string::npos) return false;
  return (strtoull(status.c_str() + caught + strlen("\nSigCgt:"), nullptr, 16) >> (signal - 1) & 1) != 0;
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
