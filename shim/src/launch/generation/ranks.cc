#include "generation/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "command/environment.h"
#include "command/program.h"
#include "command/start.h"
#include "common/clock.h"
#include "common/files.h"
#include "process/process_tree.h"
#include "process/processes.h"

namespace falcon {
namespace {

constexpr size_t kMostFiles = 16384;  // that are looked at in the folder of rings

// A process that ended so was killed itself; a shell reports its child's signal n as 128 + n.
bool was_killed(int status) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGKILL;
  return WEXITSTATUS(status) == 128 + SIGKILL;
}

// A process group of its own is in the background of a terminal: a rank that reads there would be stopped. The only
// rank comes to the foreground, so that a debugger works; several read the end of input.
void take_terminal(bool alone) {
  if (isatty(STDIN_FILENO) == 0) return;
  if (alone) {
    ::signal(SIGTTOU, SIG_IGN);
    tcsetpgrp(STDIN_FILENO, getpgrp());
    ::signal(SIGTTOU, SIG_DFL);
    return;
  }
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
}

}  // namespace

std::string Ranks::start(const Plan& plan) {
  reports_.clear();
  schedules_.forget();
  routing_.begin();
  any_ended_ = false;
  judge_programs();
  first_rank_ = plan.first_rank;
  rings_.begin(plan.generation, plan.first_rank, plan.procs);
  oom_.begin(read_cgroup().oom_kills);
  const int procs = options_.own ? 1 : plan.procs;
  const std::map<int, pid_t> held = standbys_.release(plan, ours_, whole_lines(plan));
  for (int local = 0; local < procs; ++local) {
    const auto ready = held.find(local);
    std::string error;
    if (ready != held.end()) {
      add_report(plan, local, ready->second);
    } else {
      error = spawn(plan, local);
    }
    if (!error.empty()) return error;
  }
  return "";
}

bool Ranks::whole_lines(const Plan& plan) const { return plan.procs > 1 && !options_.own; }

void Ranks::look_at_standbys(const Plan& plan) {
  if (!judged_) judge_programs();
  std::vector<pid_t> pids;
  pids.reserve(reports_.size());
  for (const RankReport& rank : reports_) pids.push_back(rank.pid);
  standbys_.look(plan, ours_, pids);
}

std::set<pid_t> Ranks::kept_pids() const {
  std::set<pid_t> found = standbys_.pids();
  found.insert({directory_.pid(), rescuer_.pid()});
  return found;
}

ProcessTree Ranks::tree() const {
  std::vector<RankRoot> roots;
  roots.reserve(reports_.size());
  for (const RankReport& rank : reports_) {
    roots.push_back({rank.pid, rank.running, !rank.running && rank.exit_code == 0, rank.ended_ns});
  }
  std::set<pid_t> own = kept_pids();
  own.insert({check_.pid(), smoke_.pid(), links_.pid()});
  return read_tree_of(getpid(), std::move(roots), own);
}

void Ranks::judge_programs() {
  judged_ = true;
  ours_ = {};
  if (options_.shim == "off") {
    untracked_ = "tracking is switched off";
    return;
  }
  ours_.python =
      !options_.python.empty() && access((options_.python + "/falcon_site/sitecustomize.py").c_str(), R_OK) == 0;
  untracked_ = untracked_reason(options_.command);
  // A static program ignores the library and hands it on: tini, a Go launcher or uv may start a Python that takes it.
  ours_.preload = untracked_.empty() || (untracked_ == kStatic && untracked_file("/bin/sh").empty());
  if (ours_.preload && access(options_.shim.c_str(), R_OK) != 0) {
    untracked_ = "no shim at " + options_.shim;
    ours_.preload = false;
  }
}

std::string Ranks::spawn(const Plan& plan, int local_rank) {
  const Output::Ends ends = output_->add(plan.generation, local_rank, whole_lines(plan));
  const bool alone = plan.procs == 1 || options_.own;
  const Variables environment = rank_environment(own_environment(), options_, plan, local_rank, ours_);
  const Started started = start_command(options_.command, environment, ends, [alone] { take_terminal(alone); });
  close(ends.out);
  close(ends.err);
  if (started.error.empty()) add_report(plan, local_rank, started.pid);
  return started.error;
}

void Ranks::add_report(const Plan& plan, int local_rank, pid_t pid) {
  RankReport report;
  report.local_rank = local_rank;
  report.rank = plan.first_rank + local_rank;
  report.pid = pid;
  report.running = true;
  report.started_unix_ns = unix_ns();
  reports_.push_back(report);
}

std::vector<int> Ranks::reap() {
  std::vector<std::pair<RankReport*, int>> ended;
  int others_killed = 0;
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto found =
        std::find_if(reports_.begin(), reports_.end(), [&](const RankReport& r) { return r.running && r.pid == pid; });
    if (check_.ended(pid, status) || smoke_.ended(pid, status) || links_.ended(pid, status)) continue;
    if (found == reports_.end()) {  // a standby, a process of ours, or an orphan that we adopted
      const bool ours = directory_.ended(pid) || rescuer_.ended(pid) || standbys_.ended(pid);
      others_killed += ours && was_killed(status) ? 1 : 0;
      if (!ours) routing_.note_end(pid, WIFEXITED(status) && WEXITSTATUS(status) == 0, WIFSIGNALED(status));
      continue;
    }
    found->running = false;
    found->ended_unix_ns = unix_ns();
    found->ended_ns = monotonic_ns();
    any_ended_ = true;
    next_survivors_ns_ = 0;
    found->blocked_since_unix_ns.reset();
    ended.emplace_back(&*found, status);
  }
  if (ended.empty() && others_killed == 0) return {};
  oom_.note(read_cgroup().oom_kills, monotonic_ns());
  for (; others_killed > 0; --others_killed) oom_.explains(monotonic_ns());  // that kill explains no rank's end
  // Ranks that were killed are judged before ranks that failed: the failures follow from the kill.
  std::partition(ended.begin(), ended.end(), [](const auto& end) { return was_killed(end.second); });
  std::vector<int> local_ranks;
  for (const auto& [report, how] : ended) {
    judge_end(report, how);
    local_ranks.push_back(report->local_rank);
  }
  return local_ranks;
}

void Ranks::judge_end(RankReport* report, int status) {
  if (WIFSIGNALED(status)) {
    report->signal = WTERMSIG(status);
    report->core_dumped = WCOREDUMP(status);
  } else {
    report->exit_code = WEXITSTATUS(status);
  }
  // A rank whose data loader was killed for memory fails of its own accord, and so does a launcher without its worker.
  const bool failed = was_killed(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0);
  report->oom_killed = failed && oom_.explains(monotonic_ns());
}

void Ranks::forward(int number) { send(routing_.forward(tree(), number)); }

void Ranks::stop(const StopTerms& terms, bool urgent) { send(routing_.stop(tree(), terms, urgent, monotonic_ns())); }

bool Ranks::await_ends() {
  const Routed routed = routing_.look(tree(), monotonic_ns());
  send(routed.deliveries);
  return routed.waits;
}

void Ranks::look_at_survivors() {
  const int64_t now = monotonic_ns();
  if (!any_ended_ || now < next_survivors_ns_) return;
  next_survivors_ns_ = await_ends() ? now : now + kSecondNs;
}

bool Ranks::kill_all() {
  const pid_t self = getpid();
  const std::set<pid_t> kept = kept_pids();
  std::vector<Process> found = list_processes();
  found.erase(std::remove_if(found.begin(), found.end(), [&](const Process& p) { return kept.count(p.pid) != 0; }),
              found.end());
  bool left = false;
  for (const pid_t pid : descendants(self, found)) {
    if (pid == self) continue;
    left = true;
    kill(pid, SIGKILL);
  }
  return !left;
}

bool Ranks::running() const {
  return std::any_of(reports_.begin(), reports_.end(), [](const RankReport& rank) { return rank.running; });
}

bool Ranks::failed() const {
  return std::any_of(reports_.begin(), reports_.end(),
                     [](const RankReport& rank) { return !rank.running && rank.exit_code != 0; });
}

bool Ranks::ended_well() const {
  return !reports_.empty() && std::all_of(reports_.begin(), reports_.end(),
                                          [](const RankReport& rank) { return !rank.running && rank.exit_code == 0; });
}

bool Ranks::programs_ended_well() const {
  return !reports_.empty() && std::all_of(reports_.begin(), reports_.end(), [&](const RankReport& rank) {
    return !rank.running && (rank.exit_code == 0 || (rank.signal && routing_.programs_ended_well(rank.pid)));
  });
}

bool Ranks::choose_rings() {
  std::vector<std::string> before;
  before.reserve(rings_.own().size());
  for (const RingFile& ring : rings_.own()) before.push_back(ring.name);
  std::vector<pid_t> started;
  started.reserve(reports_.size());
  for (const RankReport& rank : reports_) started.push_back(rank.pid);
  rings_.choose(list_files(rings_folder(), kMostFiles), list_processes(), started);
  for (const std::string& name : rings_.superseded()) unlink((rings_folder() + "/" + name).c_str());
  if (!rings_.own().empty() && untracked_ == kStatic) untracked_.clear();  // no trainer itself, but it started one
  const auto same = [](const std::string& name, const RingFile& ring) { return name == ring.name; };
  return !std::equal(before.begin(), before.end(), rings_.own().begin(), rings_.own().end(), same);
}

std::vector<pid_t> Ranks::own_processes() const {
  std::vector<pid_t> found;
  for (const RingFile& ring : rings_.own()) found.push_back(ring.pid);
  for (const RankReport& rank : reports_) {
    if (rings_.own().empty() && rank.running) found.push_back(rank.pid);
  }
  return found;
}

std::vector<RankSchedule> Ranks::sample() {
  const int64_t now = monotonic_ns();
  std::vector<RankSchedule> out;
  const auto processes = list_processes();
  for (RankReport& rank : reports_) {
    if (!rank.running) continue;
    const auto schedule = schedules_.sample(rank.pid, processes, now);
    const std::optional<int64_t> blocked = schedules_.blocked_since(rank.pid);
    if (!blocked) rank.blocked_since_unix_ns.reset();
    if (blocked && !rank.blocked_since_unix_ns) rank.blocked_since_unix_ns = unix_ns() - (now - *blocked);
    if (!options_.own) out.push_back({rank.local_rank, schedule, most_open_files(rank.pid, processes)});
  }
  if (!options_.own) return out;
  for (const RingFile& ring : rings_.own()) {  // workers of the user's launcher, known by the rings that they write
    if (ring.rank < 0) continue;
    out.push_back(
        {ring.rank - first_rank_, schedules_.sample(ring.pid, processes, now), most_open_files(ring.pid, processes)});
  }
  return out;
}

}  // namespace falcon
