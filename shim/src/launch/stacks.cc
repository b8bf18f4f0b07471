#include "stacks.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "processes.h"

namespace falcon {

void take_stacks(const std::string& folder, const std::vector<pid_t>& processes) {
  for (const pid_t pid : processes) {
    const std::string file = folder + "/" + std::to_string(pid);
    if (handles(pid, kStackSignal) && truncate(file.c_str(), 0) == 0) kill(pid, kStackSignal);
  }
}

void remove_stacks_but(const std::string& folder, const std::set<pid_t>& kept) {
  each_number(folder, [&](pid_t pid) {
    if (kept.count(pid) == 0) unlink((folder + "/" + std::to_string(pid)).c_str());
  });
}

void remove_dead_stacks(const std::string& folder) {
  each_number(folder, [&](pid_t pid) {
    if (kill(pid, 0) != 0 && errno == ESRCH) unlink((folder + "/" + std::to_string(pid)).c_str());
  });
}

}  // namespace falcon
