// The processes of this pid namespace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace falcon {

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  bool ended = false;    // a zombie: nobody has reaped it yet
  uint64_t started = 0;  // clock ticks since boot
};

std::vector<Process> list_processes();

// `root` and everything below it, zombies included.
std::vector<pid_t> descendants(pid_t root, const std::vector<Process>& processes);

// Whether a process has a handler of its own for a signal. False where it is gone.
bool handles(pid_t pid, int signal);

// Whether a process has this file open. False where it, or the file, is gone.
bool has_open(pid_t pid, const std::string& path);

// The entries of a folder that are numbers, as processes and threads are under /proc.
void each_number(const std::string& folder, const std::function<void(pid_t)>& visit);

// Fills `process` from the text of /proc/…/stat, but for its pid. The state's letter; 0 where it is gone.
char state_of(const std::string& stat, Process* process);

}  // namespace falcon
