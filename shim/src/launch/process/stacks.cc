#include "process/stacks.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "process/processes.h"

namespace falcon {
namespace {

void remove_files_of(const std::string& folder, pid_t pid) {
  const std::string file = folder + "/" + std::to_string(pid);
  for (const char* suffix : {"", ".sample", ".notes"}) unlink((file + suffix).c_str());
}

// A program may have closed the descriptor that its interpreter writes to, and have a file of its own under its number.
bool can_answer(pid_t pid, int signal, const std::string& file) { return handles(pid, signal) && has_open(pid, file); }

}  // namespace

void take_stacks(const std::string& folder, const std::vector<pid_t>& processes) {
  for (const pid_t pid : processes) {
    const std::string file = folder + "/" + std::to_string(pid);
    if (can_answer(pid, kStackSignal, file) && truncate(file.c_str(), 0) == 0) kill(pid, kStackSignal);
  }
}

void take_samples(const std::string& folder, const std::vector<pid_t>& processes, const std::string& wanted) {
  std::istringstream words(wanted);
  std::string time;
  words >> time;
  for (pid_t pid = 0; words >> pid;) {
    if (std::find(processes.begin(), processes.end(), pid) == processes.end()) continue;
    const std::string file = folder + "/" + std::to_string(pid) + ".sample";
    if (can_answer(pid, kSampleSignal, file) && truncate(file.c_str(), 0) == 0) {
      syscall(SYS_tgkill, pid, pid, kSampleSignal);
    }
  }
}

void remove_stacks_but(const std::string& folder, const std::set<pid_t>& kept) {
  each_number(folder, [&](pid_t pid) {
    if (kept.count(pid) == 0) remove_files_of(folder, pid);
  });
}

void remove_dead_stacks(const std::string& folder) {
  each_number(folder, [&](pid_t pid) {
    if (kill(pid, 0) != 0 && errno == ESRCH) remove_files_of(folder, pid);
  });
}

}  // namespace falcon
