#include "standby/standbys.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "command/program.h"
#include "command/start.h"
#include "common/clock.h"
#include "common/files.h"
#include "process/counters.h"
#include "process/processes.h"

namespace falcon {
namespace {

constexpr int64_t kShare = 5;                 // a fifth of a core: the cgroup's quota is the ranks' as well
constexpr int64_t kAheadNs = kSecondNs / 50;  // of its share, before it is stopped
constexpr int64_t kImportNs = 600 * kSecondNs;
constexpr int64_t kAnswerNs = kSecondNs / 2;  // beyond it a cold start is quicker
constexpr int64_t kRetryNs = 10 * kSecondNs;
constexpr int kMostFailures = 2;               // in one generation
constexpr int64_t kStartBytes = 1280LL << 20;  // free memory: PyTorch's imports take 400 to 700 MB
constexpr int64_t kKeptBytes = 512LL << 20;    // with less, the ranks need it more
constexpr size_t kMostHeard = 400;
constexpr size_t kMostRecord = 1 << 20;
constexpr char kOwnScore[] = "/proc/self/oom_score_adj";
constexpr char kKillFirst[] = "1000";

bool write_value(const std::string& path, const std::string& value) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool done = write(file, value.data(), value.size()) == static_cast<ssize_t>(value.size());
  close(file);
  return done;
}

// What a standby has of its own, between fork and exec. Each may fail, and then does not matter.
void yield_to_ranks(bool niced) {
  if (niced) setpriority(PRIO_PROCESS, 0, 19);
  rlimit core{};
  if (getrlimit(RLIMIT_CORE, &core) == 0) {
    core.rlim_cur = 0;
    setrlimit(RLIMIT_CORE, &core);
  }
  write_value(kOwnScore, kKillFirst);
}

// Makes a standby what a process is that we start anew; its threads have niceness of their own.
bool restore(pid_t pid, bool niced) {
  const std::string folder = "/proc/" + std::to_string(pid);
  rlimit core{};
  bool done = getrlimit(RLIMIT_CORE, &core) == 0 && prlimit(pid, RLIMIT_CORE, &core, nullptr) == 0;
  const std::string score = read_file(kOwnScore);
  done = (score.empty() || write_value(folder + "/oom_score_adj", score)) && done;
  const int niceness = getpriority(PRIO_PROCESS, 0);
  if (niced) {
    each_number(folder + "/task", [&](pid_t thread) {
      done = setpriority(PRIO_PROCESS, static_cast<id_t>(thread), niceness) == 0 && done;
    });
  }
  return done;
}

// CPU time of a process; 0 where it is gone.
int64_t used_ns(pid_t pid) {
  clockid_t clock = 0;
  return clock_getcpuclockid(pid, &clock) == 0 ? clock_ns(clock) : 0;
}

bool send_all(int socket, const std::string& bytes) {
  return ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

bool answers(int socket, int64_t until_ns) {
  pollfd ready{socket, POLLIN, 0};
  const int64_t left_ms = std::max<int64_t>(0, (until_ns - monotonic_ns()) / 1000000);
  char answer = 0;
  return poll(&ready, 1, static_cast<int>(left_ms)) == 1 && recv(socket, &answer, 1, MSG_DONTWAIT) == 1 &&
         answer == 'o';
}

// The words of another process, for a JSON text.
std::string clean(std::string text) {
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

}  // namespace

void Standbys::look(const Plan& plan, const Additions& ours, const std::vector<pid_t>& ranks) {
  if (plan.phase == Phase::kFinish) return;
  if (plan.standby == Standby::kNone) {
    end();
    report_.reset();
    return;
  }
  const int64_t now = monotonic_ns();
  hear();
  const bool alone = plan.phase == Phase::kStop;  // no rank of this pod runs, nor minds what they cost
  if (!alone) restrain(now);
  const bool room = memory_allows(now);
  const bool settled = plan.settled || alone;
  if (settled && refusal_.empty()) refusal_ = refusal(ours, ranks);
  judge_program(plan, ours);
  const bool starts = settled && refusal_.empty() && room && failures_ < kMostFailures && now >= not_before_ns_;
  for (int local = 0; starts && !importing() && local < plan.procs; ++local) {
    if (held_.count(local) == 0) start(plan, ours, local);
  }
  tell(plan.procs);
}

std::string Standbys::refusal(const Additions& ours, const std::vector<pid_t>& ranks) const {
  if (options_.own) return "a launcher of your own starts its workers itself";
  if (!ours.python) return "nothing of Falcon's runs in the ranks' interpreters";
  if (isatty(STDIN_FILENO) != 0) return "the container has a terminal";
  std::string reason = unheld_reason(options_.command);
  if (!reason.empty()) return reason;
  for (size_t local = 0; local < ranks.size(); ++local) {
    const std::string record = "\n" + read_regular(imports_path(static_cast<int>(local)), kMostRecord);
    if (record.find("\np " + std::to_string(ranks[local]) + "\n") == std::string::npos) {
      return "the command's interpreter ignores PYTHONPATH (-I, -E or -S), or is a child of the command";
    }
  }
  return "";
}

// Where a program cannot wait, its interpreter does.
void Standbys::judge_program(const Plan& plan, const Additions& ours) {
  if (plan.standby != Standby::kProcesses || !instead_.empty()) return;
  if (!ours.preload) {
    instead_ = "nothing of Falcon's would hold the program";
  } else if (plan.next_master_port == 0) {
    instead_ = "the operator does not say where the next ranks meet";
  } else if (failures_ >= kMostFailures) {
    instead_ = std::move(failure_);
    failure_.clear();
    failures_ = 0;
  }
}

std::string Standbys::imports_path(int local_rank) const {
  return options_.run_dir + "/launch/standby/imports." + std::to_string(local_rank);
}

void Standbys::hear() {
  for (auto at = held_.begin(); at != held_.end();) {
    Held* held = &at->second;
    if (held->ready || hear(held)) {
      ++at;
      continue;
    }
    drop(held);
    at = held_.erase(at);
  }
}

// False where it is of no use any more.
bool Standbys::hear(Held* held) {
  char part[kMostHeard];
  ssize_t count = 0;
  do {  // to the end, where there is one: its last word and its end may be there together
    count = recv(held->socket, part, sizeof(part), MSG_DONTWAIT);
    if (count > 0) held->heard.append(part, static_cast<size_t>(count));
  } while (count > 0 && held->heard.size() < kMostHeard);
  for (size_t end = 0; !held->ready && (end = held->heard.find('\n')) != std::string::npos;) {
    const std::string line = held->heard.substr(0, end);
    held->heard.erase(0, end + 1);
    if (!take(held, line)) return false;
  }
  if (held->ready) return true;
  if (count == 0 && held->program) {  // also where another program has taken the process over
    fail("the program ended before it met the other ranks");
    return false;
  }
  const bool late = monotonic_ns() - held->since_ns > kImportNs;
  if (late && held->program) fail("the program did not meet the other ranks within ten minutes");
  if (late && !held->program) fail("the imports took longer than ten minutes");
  return !late && held->heard.size() < kMostHeard;
}

// "imported NOTE", which goes on to its program, "ready NOTE", or "failed WHY".
bool Standbys::take(Held* held, const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size() - 1);
  const std::string word = line.substr(0, space);
  const std::string rest = clean(line.substr(space + 1));
  if (word != "imported" && word != "ready") {
    fail(rest);
    return false;
  }
  if (!rest.empty()) held->note = rest;
  held->ready = word == "ready";
  if (held->ready && held->stopped) kill(-held->pid, SIGCONT);
  return true;
}

void Standbys::restrain(int64_t now_ns) {
  for (auto& [local, held] : held_) {
    if (held.ready) continue;
    const int64_t used = used_ns(held.pid);
    // What it could not use is not saved up for later.
    held.allowed_ns = std::min(held.allowed_ns + (now_ns - held.looked_ns) / kShare, used + kAheadNs);
    held.looked_ns = now_ns;
    const int64_t ahead_ns = used - held.allowed_ns;
    const bool stop = ahead_ns > (held.stopped ? 0 : kAheadNs);
    if (stop == held.stopped) continue;
    held.stopped = stop;
    kill(-held.pid, stop ? SIGSTOP : SIGCONT);
  }
}

bool Standbys::memory_allows(int64_t now_ns) {
  if (now_ns - memory_looked_ns_ < kSecondNs) return memory_allows_;
  memory_looked_ns_ = now_ns;
  const Counter free = free_memory(read_cgroup());
  memory_allows_ = free.value_or(0) >= kStartBytes;
  if (free.value_or(kKeptBytes) < kKeptBytes) {
    const bool program =
        std::any_of(held_.begin(), held_.end(), [](const auto& entry) { return entry.second.program; });
    if (program) fail("too little memory is free for the program beside the ranks");
    end();
  }
  return memory_allows_;
}

void Standbys::start(const Plan& plan, const Additions& ours, int local_rank) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return fail(strerror(errno));
  const Output::Pipes pipes = Output::make_pipes();
  Held held;
  held.socket = ends[0];
  held.output = pipes.read;
  held.since_ns = held.looked_ns = monotonic_ns();
  held.program = plan.standby == Standby::kProcesses && instead_.empty();
  Plan next = plan;
  if (held.program) {
    ++next.generation;
    next.master_port = plan.next_master_port;
  }
  held.environment = rank_environment(own_environment(), options_, next, local_rank, ours);
  Variables environment = held.environment;
  if (plan.phase == Phase::kStop) environment["FALCON_STANDBY_IMPORTS"] = options_.run_dir + "/agent/imports";
  environment["FALCON_STANDBY"] = std::to_string(ends[1]);
  if (held.program) environment["FALCON_STANDBY_PORT"] = std::to_string(next.master_port);
  const bool niced = plan.phase != Phase::kStop && may_be_niced();
  const Started started = start_command(options_.command, environment, pipes.write, [&] {
    fcntl(ends[1], F_SETFD, 0);
    yield_to_ranks(niced);
  });
  close(ends[1]);
  close(pipes.write.out);
  close(pipes.write.err);
  held.pid = started.pid;
  if (started.error.empty() && pipes.read.out >= 0) {
    held_[local_rank] = std::move(held);
    return;
  }
  drop(&held);
  fail(started.error.empty() ? "no pipe for its output" : started.error);
}

// Whether the lowest priority can be taken back: an ordinary process cannot. Tried in a process of its own.
bool Standbys::may_be_niced() {
  if (niced_) return *niced_;
  const int niceness = getpriority(PRIO_PROCESS, 0);
  const pid_t pid = fork();
  if (pid == 0) {
    _exit(setpriority(PRIO_PROCESS, 0, 19) == 0 && setpriority(PRIO_PROCESS, 0, niceness) == 0 ? 0 : 1);
  }
  int status = 1;
  niced_ = pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
  return *niced_;
}

std::map<int, pid_t> Standbys::release(const Plan& plan, const Additions& ours, bool whole_lines) {
  hear();
  std::set<int> asked;
  for (auto& [local, held] : held_) {
    if (local < plan.procs && !options_.own && send(&held, plan, ours, local)) asked.insert(local);
  }
  const int64_t until_ns = monotonic_ns() + kAnswerNs;
  std::map<int, pid_t> ranks;
  for (const int local : asked) {
    const auto found = held_.find(local);
    Held& held = found->second;
    if (!answers(held.socket, until_ns)) continue;
    output_->add(held.output, plan.generation, local, whole_lines);
    held.output = {};
    if (!send_all(held.socket, "g")) continue;
    close(held.socket);
    ranks[local] = held.pid;
    held_.erase(found);
  }
  end();
  refusal_.clear();
  instead_.clear();
  failure_.clear();
  failures_ = 0;
  not_before_ns_ = 0;
  return ranks;
}

bool Standbys::send(Held* held, const Plan& plan, const Additions& ours, int local_rank) const {
  if (!held->ready || !restore(held->pid, niced_.value_or(false))) return false;
  const Variables wanted = rank_environment(own_environment(), options_, plan, local_rank, ours);
  Variables changed;
  std::string text;
  for (const auto& [key, value] : wanted) {
    const auto before = held->environment.find(key);
    if (before == held->environment.end() || before->second != value) changed[key] = value;
  }
  for (const std::string& line : joined(changed)) text.append(line).push_back('\0');
  for (const auto& [key, value] : held->environment) {
    if (wanted.count(key) != 0) continue;
    changed[key];
    text.append(key).push_back('\0');
  }
  // What its program may have read cannot be changed; the address is, where the connection is made.
  changed.erase("MASTER_ADDR");
  if (held->program && !changed.empty()) {
    fprintf(stderr, "falcon-launch: a standby of rank %d is not used: %s is not what it was started with\n",
            plan.first_rank + local_rank, changed.begin()->first.c_str());
    return false;
  }
  return send_all(held->socket, text + ".");
}

bool Standbys::ended(pid_t pid) {
  const auto found =
      std::find_if(held_.begin(), held_.end(), [&](const auto& entry) { return entry.second.pid == pid; });
  if (found == held_.end()) return dropped_.erase(pid) > 0;
  if (found->second.ready || hear(&found->second)) fail("a standby has ended by itself");
  drop(&found->second);
  dropped_.erase(pid);
  held_.erase(found);
  return true;
}

void Standbys::fail(const std::string& why) {
  failure_ = why;
  ++failures_;
  not_before_ns_ = monotonic_ns() + kRetryNs;
}

void Standbys::drop(Held* held) {
  if (held->pid > 0) {
    kill(-held->pid, SIGKILL);
    dropped_.insert(held->pid);
  }
  for (const int file : {held->socket, held->output.out, held->output.err}) {
    if (file >= 0) close(file);
  }
}

void Standbys::end() {
  for (auto& [local, held] : held_) drop(&held);
  held_.clear();
}

std::set<pid_t> Standbys::pids() const {
  std::set<pid_t> found;
  for (const auto& [local, held] : held_) found.insert(held.pid);
  return found;
}

bool Standbys::importing() const {
  return std::any_of(held_.begin(), held_.end(), [](const auto& entry) { return !entry.second.ready; });
}

void Standbys::tell(int wanted) {
  StandbyReport report;
  report.wanted = wanted;
  for (const auto& [local, held] : held_) {
    report.ready += held.ready ? 1 : 0;
    if (!held.note.empty()) report.why = held.note;
  }
  if (!instead_.empty()) report.why = "before the program instead of in it: " + instead_;
  if (!memory_allows_ && report.ready < wanted && !importing()) report.why = "too little memory is free";
  if (!failure_.empty() && report.ready < wanted) report.why = failure_;
  if (!refusal_.empty()) report.why = refusal_;
  report_ = std::move(report);
}

}  // namespace falcon
