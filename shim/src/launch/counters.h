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

CgroupCounters read_cgroup();

struct Schedule {
  int64_t cpu_ns = 0;
  int64_t run_delay_ns = 0;
};

// Sums of /proc/PID/task/*/schedstat over the descendants of each rank, threads and processes that have ended included
// as far as they were seen.
class Schedules {
 public:
  // Nothing where not even one thread could be read.
  std::optional<Schedule> sample(pid_t root, const std::vector<std::pair<pid_t, pid_t>>& processes);
  void forget() { seen_.clear(); }

 private:
  std::map<std::pair<pid_t, pid_t>, Schedule> seen_;  // (root, thread)
};

// Every process of this pid namespace with its parent.
std::vector<std::pair<pid_t, pid_t>> list_processes();

// `root` and everything below it.
std::vector<pid_t> descendants(pid_t root, const std::vector<std::pair<pid_t, pid_t>>& processes);

}  // namespace falcon
