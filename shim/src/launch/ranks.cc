#include "ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "clock.h"
#include "environment.h"
#include "program.h"

namespace falcon {
namespace {

// What a process image must not inherit from us: our own blocked and ignored signals.
void restore_signals() {
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
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
  output_->reset_tails();
  untracked_ = reason_untracked();
  note(read_cgroup());
  note(read_cgroup());
  const int procs = options_.own ? 1 : plan.procs;
  for (int local = 0; local < procs; ++local) {
    std::string error = spawn(plan, local);
    if (!error.empty()) return error;
  }
  return "";
}

std::string Ranks::reason_untracked() const {
  std::string reason = untracked_reason(options_.command);
  if (reason.empty() && access(options_.shim.c_str(), R_OK) != 0) reason = "no shim at " + options_.shim;
  return reason;
}

std::string Ranks::spawn(const Plan& plan, int local_rank) {
  const std::string program = find_program(options_.command[0]);
  if (program.empty()) return options_.command[0] + ": not found in PATH: is it in the container's image?";
  std::vector<std::string> variables =
      joined(rank_environment(own_environment(), options_, plan, local_rank, untracked_.empty()));
  std::vector<std::string> words = options_.command;
  std::vector<std::string> shell_words{"/bin/sh", program};
  shell_words.insert(shell_words.end(), words.begin() + 1, words.end());
  const std::vector<char*> envp = pointers(&variables);
  const std::vector<char*> argv = pointers(&words);
  const std::vector<char*> shell_argv = pointers(&shell_words);
  int failure[2];
  if (pipe2(failure, O_CLOEXEC) != 0) return std::string("pipe: ") + strerror(errno);
  const Output::Ends ends = output_->add(local_rank, plan.procs > 1 && !options_.own);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
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

void Ranks::note(const CgroupCounters& counters) {
  oom_kills_before_ = oom_kills_;
  oom_kills_ = counters.oom_kills.value_or(oom_kills_);
}

std::vector<int> Ranks::reap() {
  std::vector<int> ended;
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto found =
        std::find_if(reports_.begin(), reports_.end(), [&](const RankReport& r) { return r.running && r.pid == pid; });
    if (found == reports_.end()) continue;  // an orphan that we adopted
    ended.push_back(found->local_rank);
    found->running = false;
    found->ended_unix_ns = unix_ns();
    if (WIFSIGNALED(status)) {
      found->signal = WTERMSIG(status);
      found->core_dumped = WCOREDUMP(status);
      found->oom_killed =
          *found->signal == SIGKILL && read_cgroup().oom_kills.value_or(oom_kills_before_) > oom_kills_before_;
    } else {
      found->exit_code = WEXITSTATUS(status);
    }
  }
  return ended;
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

bool Ranks::running() const {
  return std::any_of(reports_.begin(), reports_.end(), [](const RankReport& rank) { return rank.running; });
}

std::vector<RankSchedule> Ranks::schedules() {
  std::vector<RankSchedule> out;
  const auto processes = list_processes();
  for (const RankReport& rank : reports_) {
    if (rank.running) out.push_back({rank.local_rank, schedules_.sample(rank.pid, processes)});
  }
  return out;
}

}  // namespace falcon
