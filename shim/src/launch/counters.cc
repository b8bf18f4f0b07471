#include "counters.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "files.h"

namespace falcon {
namespace {

// The folder of our own cgroup for a controller. In a container the mount shows the container's folder itself;
// elsewhere the path from /proc/self/cgroup leads on from the mount.
std::string folder_of(const std::string& controller) {
  std::istringstream lines(read_file("/proc/self/cgroup"));
  std::string path;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool wanted = controller.empty() ? names == ",," : names.find("," + controller + ",") != std::string::npos;
    if (wanted) path = line.substr(second + 1);
  }
  const std::string mount = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
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

bool all_digits(const char* text) {
  return *text != '\0' && std::all_of(text, text + strlen(text), [](char c) { return c >= '0' && c <= '9'; });
}

template <typename Visit>
void each_number(const std::string& folder, Visit visit) {
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    if (all_digits(entry->d_name)) visit(static_cast<pid_t>(strtol(entry->d_name, nullptr, 10)));
  }
  closedir(entries);
}

}  // namespace

CgroupCounters read_cgroup() {
  CgroupCounters counters;
  if (access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0) {
    const std::string folder = folder_of("");
    const auto cpu = pairs(folder + "/cpu.stat");
    counters.nr_periods = get(cpu, "nr_periods");
    counters.nr_throttled = get(cpu, "nr_throttled");
    counters.throttled_ns = get(cpu, "throttled_usec", 1000);
    counters.cpu_usage_ns = get(cpu, "usage_usec", 1000);
    counters.memory_bytes = single(folder + "/memory.current");
    counters.oom_kills = get(pairs(folder + "/memory.events"), "oom_kill");
    counters.cpu_pressure_some_us = pressure(folder + "/cpu.pressure");
    return counters;
  }
  const auto cpu = pairs(folder_of("cpu") + "/cpu.stat");
  counters.nr_periods = get(cpu, "nr_periods");
  counters.nr_throttled = get(cpu, "nr_throttled");
  counters.throttled_ns = get(cpu, "throttled_time");
  counters.cpu_usage_ns = single(folder_of("cpuacct") + "/cpuacct.usage");
  const std::string memory = folder_of("memory");
  counters.memory_bytes = single(memory + "/memory.usage_in_bytes");
  counters.oom_kills = get(pairs(memory + "/memory.oom_control"), "oom_kill");
  return counters;
}

std::vector<std::pair<pid_t, pid_t>> list_processes() {
  std::vector<std::pair<pid_t, pid_t>> found;
  each_number("/proc", [&](pid_t pid) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    const size_t name_end = stat.rfind(')');
    char state = 0;
    int parent = 0;
    if (name_end != std::string::npos && sscanf(stat.c_str() + name_end + 1, " %c %d", &state, &parent) == 2) {
      found.emplace_back(pid, parent);
    }
  });
  return found;
}

std::vector<pid_t> descendants(pid_t root, const std::vector<std::pair<pid_t, pid_t>>& processes) {
  std::vector<pid_t> found{root};
  for (size_t i = 0; i < found.size(); ++i) {
    for (const auto& [pid, parent] : processes) {
      if (parent == found[i]) found.push_back(pid);
    }
  }
  return found;
}

std::optional<Schedule> Schedules::sample(pid_t root, const std::vector<std::pair<pid_t, pid_t>>& processes) {
  for (const pid_t pid : descendants(root, processes)) {
    const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    each_number(tasks, [&](pid_t task) {
      const std::string text = read_file(tasks + "/" + std::to_string(task) + "/schedstat");
      long long cpu = 0;
      long long delay = 0;
      if (sscanf(text.c_str(), "%lld %lld", &cpu, &delay) != 2) return;
      Schedule& last = seen_[{root, task}];
      last.cpu_ns = std::max<int64_t>(last.cpu_ns, cpu);
      last.run_delay_ns = std::max<int64_t>(last.run_delay_ns, delay);
    });
  }
  const auto first = seen_.lower_bound({root, 0});
  if (first == seen_.end() || first->first.first != root) return std::nullopt;
  Schedule sum;
  for (auto it = first; it != seen_.end() && it->first.first == root; ++it) {
    sum.cpu_ns += it->second.cpu_ns;
    sum.run_delay_ns += it->second.run_delay_ns;
  }
  return sum;
}

}  // namespace falcon
