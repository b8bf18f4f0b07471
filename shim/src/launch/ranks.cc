#include "ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

#include "program.h"

extern char** environ;

namespace falcon {

int64_t unix_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000LL + now.tv_nsec;
}

std::string Ranks::start(const Plan& plan) {
  reports_.clear();
  schedules_.forget();
  output_->reset_tails();
  untracked_ = untracked_reason(options_.command);
  oom_kills_ = read_cgroup().oom_kills.value_or(0);
  const int procs = options_.own ? 1 : plan.procs;
  for (int local = 0; local < procs; ++local) {
    std::string error = spawn(plan, local);
    if (!error.empty()) return error;
  }
  return "";
}

std::vector<std::string> Ranks::environment(const Plan& plan, int local_rank) const {
  std::map<std::string, std::string> set;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) set[text.substr(0, equals)] = text.substr(equals + 1);
  }
  const auto text = [](int value) { return std::to_string(value); };
  const std::string endpoint = plan.master_addr + ":" + text(plan.master_port);
  const std::string run_id = "falcon-g" + text(plan.generation);
  set["MASTER_ADDR"] = plan.master_addr;
  set["MASTER_PORT"] = text(plan.master_port);
  set["FALCON_GENERATION"] = text(plan.generation);
  set["FALCON_RING_DIR"] = options_.run_dir + "/launch/rings";
  set["FALCON_CONTROL"] = options_.run_dir + "/agent/control";
  if (options_.own) {
    // torchrun reads its options from PET_*
    set["PET_NNODES"] = text(plan.nnodes);
    set["PET_NPROC_PER_NODE"] = text(plan.procs);
    set["PET_NODE_RANK"] = text(plan.node_rank);
    set["PET_MASTER_ADDR"] = plan.master_addr;
    set["PET_MASTER_PORT"] = text(plan.master_port);
    set["PET_RDZV_ENDPOINT"] = endpoint;
    set["PET_RDZV_ID"] = run_id;
  } else {
    set["RANK"] = text(plan.first_rank + local_rank);
    set["LOCAL_RANK"] = text(local_rank);
    set["WORLD_SIZE"] = text(plan.world_size);
    set["LOCAL_WORLD_SIZE"] = text(plan.procs);
    set["GROUP_RANK"] = text(plan.node_rank);
    set["GROUP_WORLD_SIZE"] = text(plan.nnodes);
    set["ROLE_RANK"] = text(plan.first_rank + local_rank);
    set["ROLE_WORLD_SIZE"] = text(plan.world_size);
    set["ROLE_NAME"] = "default";
    set["TORCHELASTIC_RUN_ID"] = run_id;
    set["TORCHELASTIC_RESTART_COUNT"] = text(plan.generation - 1);
    if (plan.procs > 1) set.emplace("OMP_NUM_THREADS", "1");  // as torchrun does
  }
  if (untracked_.empty() && !options_.shim.empty() && access(options_.shim.c_str(), R_OK) == 0) {
    const std::string others = set["LD_PRELOAD"];
    set["LD_PRELOAD"] = options_.shim + (others.empty() ? "" : ":" + others);
  }
  std::vector<std::string> out;
  for (const auto& [key, value] : set) {
    out.push_back(key);
    out.back() += '=';
    out.back() += value;
  }
  return out;
}

std::string Ranks::spawn(const Plan& plan, int local_rank) {
  const std::string program = find_program(options_.command[0]);
  if (program.empty()) return options_.command[0] + ": not found in PATH: is it in the container's image?";
  std::vector<std::string> variables = environment(plan, local_rank);
  std::vector<char*> envp;
  envp.reserve(variables.size() + 1);
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  std::vector<std::string> words = options_.command;
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int failure[2];
  if (pipe2(failure, O_CLOEXEC) != 0) return std::string("pipe: ") + strerror(errno);
  const Output::Ends ends = output_->add(local_rank, plan.procs > 1 && !options_.own);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (ends.out >= 0) {
      dup2(ends.out, STDOUT_FILENO);
      dup2(ends.err, STDERR_FILENO);
    }
    execve(program.c_str(), argv.data(), envp.data());
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

bool Ranks::reap() {
  bool changed = false;
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto found =
        std::find_if(reports_.begin(), reports_.end(), [&](const RankReport& r) { return r.running && r.pid == pid; });
    if (found == reports_.end()) continue;  // an orphan that we adopted
    changed = true;
    found->running = false;
    found->ended_unix_ns = unix_ns();
    if (WIFSIGNALED(status)) {
      found->signal = WTERMSIG(status);
      found->core_dumped = WCOREDUMP(status);
      const int64_t kills = read_cgroup().oom_kills.value_or(oom_kills_);
      found->oom_killed = *found->signal == SIGKILL && kills > oom_kills_;
      oom_kills_ = kills;
    } else {
      found->exit_code = WEXITSTATUS(status);
    }
  }
  return changed;
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
