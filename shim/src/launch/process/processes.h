// Lists the processes of this pid namespace.
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
  bool ended = false;    // a zombie that is not reaped yet, and none of its threads lives
  uint64_t started = 0;  // clock ticks since boot
  pid_t group = 0;
  bool stopped = false;  // by a signal of job control
};

// What a process does with signals: bit n - 1 is signal n, as /proc/…/status has it.
struct Dispositions {
  uint64_t caught = 0;
  uint64_t ignored = 0;
  uint64_t blocked = 0;  // by its main thread
  uint64_t pending = 0;  // for the process as a whole
};

// With the parent of each, as far as processes do not end faster than they can be read.
std::vector<Process> list_processes();

// `root` and everything below it, zombies included.
std::vector<pid_t> descendants(pid_t root, const std::vector<Process>& processes);

// The dispositions from the text of /proc/…/status; all 0 where it is empty.
Dispositions parse_dispositions(const std::string& status);

// All 0 where the process is gone.
Dispositions read_dispositions(pid_t pid);

// The signals for which a process's main thread waits (sigwait): the kernel does not show them as blocked meanwhile.
// All, where it waits and they cannot be read.
uint64_t read_awaited(pid_t pid);

// Whether a process has a handler of its own for a signal. False where it is gone.
bool handles(pid_t pid, int signal);

// Whether a process has this file open. False where it, or the file, is gone.
bool has_open(pid_t pid, const std::string& path);

// The path of the program that a process runs; empty where that may not be read.
std::string read_program(pid_t pid);

// The entries of a folder that are numbers, as processes and threads are under /proc.
void each_number(const std::string& folder, const std::function<void(pid_t)>& visit);

// Fills `process` from the text of /proc/…/stat, but for its pid. The state's letter; 0 where it is gone.
char state_of(const std::string& stat, Process* process);

}  // namespace falcon
