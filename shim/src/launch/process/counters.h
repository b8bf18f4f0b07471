// Reads the counters of this container's cgroup, v1 or v2: evidence that only this container can see.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace falcon {

using Counter = std::optional<int64_t>;  // nothing: unknown, never zero

struct CgroupCounters {
  Counter nr_periods;
  Counter nr_throttled;
  Counter throttled_ns;
  Counter cpu_usage_ns;
  Counter memory_bytes;
  Counter memory_limit_bytes;  // nothing: unknown, or without limit
  Counter memory_cache_bytes;  // among memory_bytes: files' pages and names, which the kernel can give back
  Counter oom_kills;
  Counter cpu_pressure_some_us;
  Counter pids;
  Counter pids_limit;  // nothing: unknown, or without limit
};

// `mount`: where cgroups are mounted; `self`: this process's membership.
CgroupCounters read_cgroup(const std::string& mount = "/sys/fs/cgroup", const std::string& self = "/proc/self/cgroup");

// Memory that the container's processes can still get, in bytes: within its limit, and of the node's.
Counter free_memory(const CgroupCounters& cgroup, const std::string& meminfo = "/proc/meminfo");

}  // namespace falcon
