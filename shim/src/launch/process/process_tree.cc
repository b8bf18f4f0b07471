#include "process/process_tree.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/files.h"

namespace falcon {
namespace {

bool is_alive(pid_t pid) {
  Process process;
  return state_of(read_file("/proc/" + std::to_string(pid) + "/stat"), &process) != 0 && !process.ended;
}

}  // namespace

ProcessTree read_tree_of(pid_t launcher, std::vector<RankRoot> ranks, const std::set<pid_t>& own) {
  std::map<pid_t, Process> listed;
  std::vector<Process> kept;
  for (const Process& process : list_processes()) {
    if (own.count(process.pid) != 0) continue;
    listed[process.pid] = process;
    kept.push_back(process);
  }
  ProcessTree tree;
  tree.launcher = launcher;
  tree.ranks = std::move(ranks);
  std::map<pid_t, Dispositions> above;
  for (const pid_t pid : descendants(launcher, kept)) {  // each after its parent
    if (pid == launcher) continue;
    Member member;
    member.process = listed[pid];
    member.signals = read_dispositions(pid);
    member.signals.blocked |= read_awaited(pid);
    above[pid] = member.signals;
    // Programs are compared where one ignores a signal that ends it, and these are few.
    const auto ignoring = [](const Dispositions& signals) {
      constexpr uint64_t kEnding = 1U << (SIGHUP - 1) | 1U << (SIGINT - 1) | 1U << (SIGQUIT - 1) | 1U << (SIGTERM - 1);
      return (signals.ignored & kEnding) != 0;
    };
    const auto parent = above.find(member.process.parent);
    if (ignoring(member.signals) || (parent != above.end() && ignoring(parent->second))) {
      member.program = read_program(pid);
    }
    tree.members.push_back(std::move(member));
  }
  return tree;
}

void send(const std::vector<Delivery>& deliveries) {
  for (const Delivery& each : deliveries) {
    if (each.ends_first) kill(each.pid, each.number);
  }
  // A process that was signalled may still have to wait for a CPU before it dies.
  const int64_t deadline_ns = monotonic_ns() + SignalRouting::kEndNs;
  const auto is_awaited = [](const Delivery& each) { return each.ends_first && is_alive(each.pid); };
  while (std::any_of(deliveries.begin(), deliveries.end(), is_awaited) && monotonic_ns() < deadline_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const Delivery& each : deliveries) {
    if (!each.ends_first) kill(each.pid, each.number);
  }
}

}  // namespace falcon
