// Measures how the ranks' threads fare: the time they ran, the time they waited for a core, and whether one hangs in
// the kernel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "process/processes.h"

namespace falcon {

struct Schedule {
  int64_t cpu_ns = 0;
  int64_t run_delay_ns = 0;
};

// Sums of /proc/PID/task/*/schedstat over the descendants of each rank, threads and processes that have ended included
// as far as they were seen; and whether one of the threads hangs in the kernel. The files of threads stay open, which
// makes reading them again five times cheaper.
class Schedules {
 public:
  static constexpr int64_t kBlockedNs = 30'000'000'000;

  Schedules();

  // Nothing where not even one thread could be read. `now_ns`: on any monotonic clock.
  std::optional<Schedule> sample(pid_t root, const std::vector<Process>& processes, int64_t now_ns);

  // Since when a thread of the last sample has not run for a moment, if it is in uninterruptible sleep and that is at
  // least kBlockedNs ago. Only threads that have not run for long are looked at.
  std::optional<int64_t> blocked_since(pid_t root) const;

  void forget() { trees_.clear(); }

 private:
  // A descriptor of a thread's file, counted against the limit of all of them.
  class OpenFile {
   public:
    OpenFile() = default;
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    ~OpenFile();

    // The text at the beginning of the file; empty where the thread is gone. Keeps it open if fewer than `most` are.
    size_t read(const char* path, char* buffer, size_t size, int* open, int most);

   private:
    int file_ = -1;
    int* open_ = nullptr;
  };

  struct Thread {
    OpenFile file;
    Schedule total;
    int64_t runs = -1;
    int64_t idle_since_ns = 0;
    int64_t seen_ns = 0;
    bool blocked = false;
  };

  struct Tree {
    std::map<pid_t, Thread> threads;
    Schedule ended;
    bool known = false;
  };

  static void look_for_blocked(Tree* tree, int64_t now_ns);

  int most_open_;
  int open_ = 0;
  std::map<pid_t, Tree> trees_;
};

}  // namespace falcon
