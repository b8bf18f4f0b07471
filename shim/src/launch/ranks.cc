#include "ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clock.h"
#include "environment.h"
#include "files.h"
#include "processes.h"
#include "program.h"

namespace falcon {
namespace {

constexpr size_t kMostFiles = 16384;  // that are looked at in the folder of rings

// A process that ended so was killed itself; a shell reports its child's signal n as 128 + n.
bool was_killed(int status) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGKILL;
  return WEXITSTATUS(status) == 128 + SIGKILL;
}

// What a process image must not inherit from us: our own blocked and ignored signals.
void restore_signals() {
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// A process group of its own is in the background of a terminal: whoever reads there would be stopped. The only rank
// comes to the foreground, so that a debugger works; several read the end of input.
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

std::vector<char*> pointers(std::vector<std::string>* words) {
  std::vector<char*> out;
  out.reserve(words->size() + 1);
  for (std::string& word : *words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

std::string Ranks::start(const Plan& plan) {
  reports_.clear();
  schedules_.forget();
  told_.clear();
  judge_programs();
  first_rank_ = plan.first_rank;
  rings_.begin(plan.generation, plan.first_rank, plan.procs);
  oom_.begin(read_cgroup().oom_kills);
  const int procs = options_.own ? 1 : plan.procs;
  for (int local = 0; local < procs; ++local) {
    std::string error = spawn(plan, local);
    if (!error.empty()) return error;
  }
  return "";
}

void Ranks::judge_programs() {
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
  const std::string program = find_program(options_.command[0]);
  if (program.empty()) return options_.command[0] + ": not found in PATH: is it in the container's image?";
  std::vector<std::string> variables = joined(rank_environment(own_environment(), options_, plan, local_rank, ours_));
  std::vector<std::string> words = options_.command;
  std::vector<std::string> shell_words{"/bin/sh", program};
  shell_words.insert(shell_words.end(), words.begin() + 1, words.end());
  const std::vector<char*> envp = pointers(&variables);
  const std::vector<char*> argv = pointers(&words);
  const std::vector<char*> shell_argv = pointers(&shell_words);
  int failure[2];
  if (pipe2(failure, O_CLOEXEC) != 0) return std::string("pipe: ") + strerror(errno);
  const Output::Ends ends = output_->add(plan.generation, local_rank, plan.procs > 1 && !options_.own);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
    take_terminal(plan.procs == 1 || options_.own);
    restore_signals();
    if (ends.out >= 0) {
      dup2(ends.out, STDOUT_FILENO);
      dup2(ends.err, STDERR_FILENO);
    }
    execve(program.c_str(), argv.data(), envp.data());
    if (errno == ENOEXEC) execve("/bin/sh", shell_argv.data(), envp.data());  // a script without #!, as execvp does
    const int error = errno;
    (void)!write(failure[1], &error, sizeof(error));
    _exit(127);
  }
  const int fork_error = errno;
  close(failure[1]);
  close(ends.out);
  close(ends.err);
  int error = 0;
  const bool failed = pid > 0 && read(failure[0], &error, sizeof(error)) == static_cast<ssize_t>(sizeof(error));
  close(failure[0]);
  if (pid < 0) return std::string("fork: ") + strerror(fork_error);
  if (failed) {
    waitpid(pid, nullptr, 0);
    return program + ": " + strerror(error);
  }
  setpgid(pid, pid);
  RankReport report;
  report.local_rank = local_rank;
  report.rank = plan.first_rank + local_rank;
  report.pid = pid;
  report.running = true;
  report.started_unix_ns = unix_ns();
  reports_.push_back(report);
  return "";
}

std::vector<int> Ranks::reap() {
  std::vector<std::pair<RankReport*, int>> ended;
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto found =
        std::find_if(reports_.begin(), reports_.end(), [&](const RankReport& r) { return r.running && r.pid == pid; });
    if (found == reports_.end()) continue;  // an orphan that we adopted
    found->running = false;
    found->ended_unix_ns = unix_ns();
    found->blocked_since_unix_ns.reset();
    ended.emplace_back(&*found, status);
  }
  if (ended.empty()) return {};
  oom_.note(read_cgroup().oom_kills, monotonic_ns());
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

void Ranks::signal(int number) {
  for (const RankReport& rank : reports_) {
    if (rank.running) kill(-rank.pid, number);
  }
}

bool Ranks::kill_all() {
  const pid_t self = getpid();
  bool left = false;
  for (const pid_t pid : descendants(self, list_processes())) {
    if (pid == self) continue;
    left = true;
    kill(pid, SIGKILL);
  }
  return !left;
}

bool Ranks::handle(int number) {
  const pid_t self = getpid();
  const auto processes = list_processes();
  for (const pid_t pid : descendants(self, processes)) {
    if (pid != self && handles(pid, number)) return true;
  }
  return false;
}

bool Ranks::running() const {
  return std::any_of(reports_.begin(), reports_.end(), [](const RankReport& rank) { return rank.running; });
}

Ranks::Survivors Ranks::signal_survivors(int number) {
  const pid_t self = getpid();
  Survivors left = Survivors::kNone;
  for (const pid_t pid : descendants(self, list_processes())) {
    if (pid == self) continue;
    const pid_t group = getpgid(pid);
    const bool of_a_rank =
        std::any_of(reports_.begin(), reports_.end(), [&](const RankReport& rank) { return rank.pid == group; });
    left = std::max(left, of_a_rank ? Survivors::kPrograms : Survivors::kDaemons);
    if (told_.insert(pid).second && !of_a_rank) kill(pid, number);
  }
  return left;
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
    if (!options_.own) out.push_back({rank.local_rank, schedule});
  }
  if (!options_.own) return out;
  for (const RingFile& ring : rings_.own()) {  // workers of the user's launcher, known by the rings that they write
    if (ring.rank >= 0) out.push_back({ring.rank - first_rank_, schedules_.sample(ring.pid, processes, now)});
  }
  return out;
}

}  // namespace falcon
