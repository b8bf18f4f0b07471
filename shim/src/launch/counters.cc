#include "counters.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>

#include "files.h"

namespace falcon {
namespace {

constexpr int64_t kCheckNs = 5'000'000'000;

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

// State and parent of a process or thread; state 0 where it is gone.
std::pair<char, pid_t> state_of(const std::string& path) {
  const std::string stat = read_file(path);
  const size_t name_end = stat.rfind(')');
  char state = 0;
  int parent = 0;
  if (name_end == std::string::npos || sscanf(stat.c_str() + name_end + 1, " %c %d", &state, &parent) != 2) return {};
  return {state, parent};
}

}  // namespace

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
    counters.oom_kills = get(pairs(folder + "/memory.events"), "oom_kill");
    counters.cpu_pressure_some_us = pressure(folder + "/cpu.pressure");
    return counters;
  }
  const auto cpu = pairs(folder_of("cpu", mount, self) + "/cpu.stat");
  counters.nr_periods = get(cpu, "nr_periods");
  counters.nr_throttled = get(cpu, "nr_throttled");
  counters.throttled_ns = get(cpu, "throttled_time");
  counters.cpu_usage_ns = single(folder_of("cpuacct", mount, self) + "/cpuacct.usage");
  const std::string memory = folder_of("memory", mount, self);
  counters.memory_bytes = single(memory + "/memory.usage_in_bytes");
  counters.oom_kills = get(pairs(memory + "/memory.oom_control"), "oom_kill");
  return counters;
}

std::vector<std::pair<pid_t, pid_t>> list_processes() {
  std::vector<std::pair<pid_t, pid_t>> found;
  each_number("/proc", [&](pid_t pid) {
    const auto [state, parent] = state_of("/proc/" + std::to_string(pid) + "/stat");
    if (state != 0) found.emplace_back(pid, parent);
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

std::optional<Schedule> Schedules::sample(pid_t root, const std::vector<std::pair<pid_t, pid_t>>& processes,
                                          int64_t now_ns) {
  Tree& tree = trees_[root];
  for (const pid_t pid : descendants(root, processes)) {
    const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    each_number(tasks, [&](pid_t task) {
      const std::string text = read_file(tasks + "/" + std::to_string(task) + "/schedstat");
      long long cpu = 0;
      long long delay = 0;
      long long runs = 0;
      if (sscanf(text.c_str(), "%lld %lld %lld", &cpu, &delay, &runs) != 3) return;
      Thread& thread = tree.threads[task];
      thread.total = {cpu, delay};
      thread.seen_ns = now_ns;
      if (thread.runs == runs) return;
      thread.runs = runs;
      thread.idle_since_ns = now_ns;
      thread.blocked = false;
    });
  }
  if (now_ns - tree.checked_ns >= kCheckNs) {
    tree.checked_ns = now_ns;
    look_for_blocked(&tree, now_ns);
  }
  Schedule sum;
  for (auto at = tree.threads.begin(); at != tree.threads.end();) {
    const Thread& thread = at->second;
    const bool there = thread.seen_ns == now_ns;
    Schedule& into = there ? sum : tree.ended;
    into.cpu_ns += thread.total.cpu_ns;
    into.run_delay_ns += thread.total.run_delay_ns;
    tree.known = true;
    at = there ? std::next(at) : tree.threads.erase(at);
  }
  if (!tree.known) return std::nullopt;
  return Schedule{sum.cpu_ns + tree.ended.cpu_ns, sum.run_delay_ns + tree.ended.run_delay_ns};
}

void Schedules::look_for_blocked(Tree* tree, int64_t now_ns) {
  for (auto& [task, thread] : tree->threads) {
    if (thread.seen_ns != now_ns || now_ns - thread.idle_since_ns < kBlockedNs) continue;
    std::string path = "/proc/" + std::to_string(task);
    path += "/task/" + std::to_string(task) + "/stat";
    thread.blocked = state_of(path).first == 'D';
  }
}

std::optional<int64_t> Schedules::blocked_since(pid_t root) const {
  const auto tree = trees_.find(root);
  if (tree == trees_.end()) return std::nullopt;
  std::optional<int64_t> since;
  for (const auto& [task, thread] : tree->second.threads) {
    if (thread.blocked && (!since || thread.idle_since_ns < *since)) since = thread.idle_since_ns;
  }
  return since;
}

}  // namespace falcon
