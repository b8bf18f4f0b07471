#include "process/counters.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include "common/files.h"

namespace falcon {
namespace {

// The folder of our own cgroup for a controller. In a container the mount shows the container's folder itself;
// elsewhere the path from /proc/self/cgroup leads on from the mount.
std::string folder_of(const std::string& controller, const std::string& root, const std::string& self) {
  std::istringstream lines(read_file(self));
  std::string path;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool wanted = controller.empty() ? names == ",," : names.find("," + controller + ",") != std::string::npos;
    if (wanted) path = line.substr(second + 1);
  }
  const std::string mount = controller.empty() ? root : root + "/" + controller;
  const std::string own = mount + path;
  return path != "/" && access((own + "/cgroup.procs").c_str(), F_OK) == 0 ? own : mount;
}

// "key value" lines.
std::map<std::string, int64_t> pairs(const std::string& path) {
  std::map<std::string, int64_t> found;
  std::istringstream lines(read_file(path));
  std::string key;
  int64_t value = 0;
  while (lines >> key >> value) found[key] = value;
  return found;
}

Counter get(const std::map<std::string, int64_t>& from, const char* key, int64_t scale = 1) {
  const auto found = from.find(key);
  return found == from.end() ? Counter() : Counter(found->second * scale);
}

Counter single(const std::string& path) {
  const std::string text = read_file(path);
  if (text.empty() || text[0] < '0' || text[0] > '9') return {};
  return strtoll(text.c_str(), nullptr, 10);
}

Counter pressure(const std::string& path) {
  const std::string text = read_file(path);
  const size_t total = text.find("total=");
  if (text.rfind("some", 0) != 0 || total == std::string::npos) return {};
  return strtoll(text.c_str() + total + 6, nullptr, 10);
}

Counter cache(const std::map<std::string, int64_t>& memory, const std::string& prefix) {
  const Counter active = get(memory, (prefix + "active_file").c_str());
  const Counter inactive = get(memory, (prefix + "inactive_file").c_str());
  // Names of files that were looked up: a data set of many small files leaves gigabytes of them.
  const int64_t names = get(memory, (prefix + "slab_reclaimable").c_str()).value_or(0);
  return active && inactive ? Counter(*active + *inactive + names) : Counter();
}

}  // namespace

Counter free_memory(const CgroupCounters& cgroup, const std::string& meminfo) {
  std::istringstream lines(read_file(meminfo));
  Counter free;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) free = strtoll(line.c_str() + strlen("MemAvailable:"), nullptr, 10) * 1024;
  }
  if (!cgroup.memory_limit_bytes || !cgroup.memory_bytes) return free;
  const int64_t used = *cgroup.memory_bytes - cgroup.memory_cache_bytes.value_or(0);
  const int64_t within = *cgroup.memory_limit_bytes - std::max<int64_t>(0, used);
  return std::min(within, free.value_or(within));
}

CgroupCounters read_cgroup(const std::string& mount, const std::string& self) {
  CgroupCounters counters;
  if (access((mount + "/cgroup.controllers").c_str(), F_OK) == 0) {
    const std::string folder = folder_of("", mount, self);
    const auto cpu = pairs(folder + "/cpu.stat");
    counters.nr_periods = get(cpu, "nr_periods");
    counters.nr_throttled = get(cpu, "nr_throttled");
    counters.throttled_ns = get(cpu, "throttled_usec", 1000);
    counters.cpu_usage_ns = get(cpu, "usage_usec", 1000);
    counters.memory_bytes = single(folder + "/memory.current");
    counters.memory_limit_bytes = single(folder + "/memory.max");
    counters.memory_cache_bytes = cache(pairs(folder + "/memory.stat"), "");
    counters.oom_kills = get(pairs(folder + "/memory.events"), "oom_kill");
    counters.cpu_pressure_some_us = pressure(folder + "/cpu.pressure");
    counters.pids = single(folder + "/pids.current");
    counters.pids_limit = single(folder + "/pids.max");
    return counters;
  }
  const auto cpu = pairs(folder_of("cpu", mount, self) + "/cpu.stat");
  counters.nr_periods = get(cpu, "nr_periods");
  counters.nr_throttled = get(cpu, "nr_throttled");
  counters.throttled_ns = get(cpu, "throttled_time");
  counters.cpu_usage_ns = single(folder_of("cpuacct", mount, self) + "/cpuacct.usage");
  const std::string memory = folder_of("memory", mount, self);
  counters.memory_bytes = single(memory + "/memory.usage_in_bytes");
  counters.memory_limit_bytes = single(memory + "/memory.limit_in_bytes");
  counters.memory_cache_bytes = cache(pairs(memory + "/memory.stat"), "total_");
  counters.oom_kills = get(pairs(memory + "/memory.oom_control"), "oom_kill");
  const std::string pids = folder_of("pids", mount, self);
  counters.pids = single(pids + "/pids.current");
  counters.pids_limit = single(pids + "/pids.max");
  return counters;
}

}  // namespace falcon
