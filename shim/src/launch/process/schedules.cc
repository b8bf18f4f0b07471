#include "process/schedules.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>

#include "common/files.h"

namespace falcon {
namespace {

constexpr int kMostOpen = 16384;
constexpr int kLeftOpen = 128;  // descriptors for everything else that the launcher does

}  // namespace

Schedules::OpenFile::~OpenFile() {
  if (file_ < 0) return;
  close(file_);
  --*open_;
}

size_t Schedules::OpenFile::read(const char* path, char* buffer, size_t size, int* open, int most) {
  int file = file_ >= 0 ? file_ : ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t count = pread(file, buffer, size - 1, 0);
  buffer[std::max<ssize_t>(count, 0)] = '\0';
  if (file_ < 0 && *open < most) {
    file_ = file;
    open_ = open;
    ++*open_;
  } else if (file_ < 0) {
    close(file);
  }
  return static_cast<size_t>(std::max<ssize_t>(count, 0));
}

// Half of what we may open, since a rank's output and pipes need descriptors, too.
Schedules::Schedules() {
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  const int allowed = known ? static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 2 * kMostOpen)) : 2 * kMostOpen;
  most_open_ = std::max(0, allowed / 2 - kLeftOpen);
}

std::optional<Schedule> Schedules::sample(pid_t root, const std::vector<Process>& processes, int64_t now_ns) {
  Tree& tree = trees_[root];
  for (const pid_t pid : descendants(root, processes)) {
    const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    each_number(tasks, [&](pid_t task) {
      Thread& thread = tree.threads[task];
      char path[64];
      char text[96];
      snprintf(path, sizeof(path), "%s/%d/schedstat", tasks.c_str(), task);
      long long cpu = 0;
      long long delay = 0;
      long long runs = 0;
      const bool there = thread.file.read(path, text, sizeof(text), &open_, most_open_) != 0;
      if (!there || sscanf(text, "%lld %lld %lld", &cpu, &delay, &runs) != 3) return;
      thread.total = {cpu, delay};
      thread.seen_ns = now_ns;
      if (thread.runs == runs) return;
      thread.runs = runs;
      thread.idle_since_ns = now_ns;
      thread.blocked = false;
    });
  }
  look_for_blocked(&tree, now_ns);
  Schedule sum;
  for (auto at = tree.threads.begin(); at != tree.threads.end();) {
    const Thread& thread = at->second;
    const bool there = thread.seen_ns == now_ns;
    Schedule& into = there ? sum : tree.ended;
    into.cpu_ns += thread.total.cpu_ns;
    into.run_delay_ns += thread.total.run_delay_ns;
    tree.known = tree.known || thread.runs >= 0;
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
    Process ignored;
    thread.blocked = state_of(read_file(path), &ignored) == 'D';
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
