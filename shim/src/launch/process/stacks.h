// Requests the Python stacks of the ranks, which their own interpreters write (agent/falcon_start/stacks.py).
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace falcon {

constexpr int kStackSignal = 57;   // of all threads
constexpr int kSampleSignal = 58;  // of the main thread alone, taken by that thread: also while others run

// Asks these processes for their stacks, in files of their own that are empty before. A process that does not listen
// would die of the signal, and gets none.
void take_stacks(const std::string& folder, const std::vector<pid_t>& processes);

// Asks those of these processes that `wanted` names, by a time and process ids, for the stack of their main thread.
void take_samples(const std::string& folder, const std::vector<pid_t>& processes, const std::string& wanted);

// Removes the files of all processes but these.
void remove_stacks_but(const std::string& folder, const std::set<pid_t>& kept);

// Removes the files of processes that are gone.
void remove_dead_stacks(const std::string& folder);

}  // namespace falcon
