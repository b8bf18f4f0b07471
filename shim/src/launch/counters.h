// Evidence that only this container can see: its cgroup's counters, v1 or v2, and its processes' waiting times.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace falcon {

using Counter = std::optional<int64_t>;  // nothing: unknown, never zero

struct CgroupCounters {
  Counter nr_periods;
  Counter nr_throttled;
  Counter throttled_ns;
  Counter cpu_usage_ns;
  Counter memory_bytes;
  Counter oom_kills;
  Counter cpu_pressure_some_us;
};

// `mount`: where cgroups are mounted; `self`: this process's membership.
CgroupCounters read_cgroup(const std::string& mount = "/sys/fs/cgroup", const std::string& self = "/proc/self/cgroup");

struct Schedule {
  int64_t cpu_ns = 0;
  int64_t run_delay_ns = 0;
};

// Sums of /proc/PID/task/*/schedstat over the descendants of each rank, threads and processes that have ended included
// as far as they were seen; and whether one of the threads hangs in the kernel.
class Schedules {
 public:
  static constexpr int64_t kBlockedNs = 30'000'000'000;

  // Nothing where not even one thread could be read. `now_ns`: on any monotonic clock.
  std::optional<Schedule> sample(pid_t root, const std::vector<std::pair<pid_t, pid_t>>& processes, int64_t now_ns);

  // Since when a thread of the last sample has not run for a moment, if it is in uninterruptible sleep and that is at
  // least kBlockedNs ago. Reported up to five seconds late: only threads that have not run for long are looked at.
  std::optional<int64_t> blocked_since(pid_t root) const;

  void forget() { trees_.clear(); }

 private:
  struct Thread {
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
    int64_t checked_ns = 0;
  };

  static void look_for_blocked(Tree* tree, int64_t now_ns);

  std::map<pid_t, Tree> trees_;
};

// Every process of this pid namespace with its parent.
std::vector<std::pair<pid_t, pid_t>> list_processes();

// `root` and everything below it.
std::vector<pid_t> descendants(pid_t root, const std::vector<std::pair<pid_t, pid_t>>& processes);

}  // namespace falcon
