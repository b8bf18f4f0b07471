#include "generation/supervisor.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/files.h"
#include "process/stacks.h"

namespace falcon {
namespace {

constexpr int kStoppingMs = 10;
constexpr int kUnwatchedMs = 25;  // where the kernel does not tell us that a plan came
constexpr int kWatchedMs = 200;
constexpr int kSettleMs = 500;
constexpr int64_t kSampleNs = 5 * kSecondNs;     // between two readings of all threads
constexpr int64_t kRestartGraceNs = kSecondNs;   // of superseded ranks that do not take SIGTERM
constexpr int64_t kEndlessNs = INT64_MAX / 2;    // as long as the kubelet leaves the pod
constexpr int64_t kMostFlushNs = 5 * kSecondNs;  // of the pod's time, for the end of a folder in memory
constexpr int64_t kStuckNs = 30 * kSecondNs;
constexpr int64_t kMarginNs = kSecondNs;  // of the pod's time, for our own end and the agent's
constexpr int kUnusable = 78;             // EX_CONFIG
constexpr int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH};

sigset_t watched_signals() {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int number : kForwarded) sigaddset(&watched, number);
  return watched;
}

// Takes what a descriptor that never blocks has to say; false if that was nothing.
bool drain(int file) {
  char ignored[4096];
  bool any = false;
  while (read(file, ignored, sizeof(ignored)) > 0) any = true;
  return any;
}

void remove_files(const std::string& folder) {
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    if (entry->d_name[0] != '.' || strncmp(entry->d_name, ".ring-", 6) == 0) {
      unlink((folder + "/" + entry->d_name).c_str());
    }
  }
  closedir(entries);
}

}  // namespace

void block_signals() {
  const sigset_t watched = watched_signals();
  sigprocmask(SIG_BLOCK, &watched, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ,
           SIG_IGN);  // a file of ours is too large for the container's limit: the write fails, and that is all
}

int Supervisor::run() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // what a rank leaves behind becomes our child, and can be found and killed
  if (!make_folder(path("launch/rings"))) {
    fprintf(
        stderr,
        "falcon-launch: cannot write %s (%s): mount a writable emptyDir at %s, or pass --run-dir a writable folder\n",
        path("launch/rings").c_str(), strerror(errno), options_.run_dir.c_str());
    return kUnusable;
  }
  make_folder(path("launch/stacks"));   // without it there are no stacks, and nothing else is missing
  make_folder(path("launch/standby"));  // and without this no standbys
  const sigset_t watched = watched_signals();
  const int signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  plans_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  rings_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  inotify_add_watch(rings_, path("launch/rings").c_str(), IN_MOVED_TO | IN_CREATE);
  watch_for_plans();
  publish_status();
  publish_rings();
  while (!done_) {
    pollfd ready[] = {{signals, POLLIN, 0}, {plans_, POLLIN, 0}, {rings_, POLLIN, 0}};
    poll(ready, 3, pause_ms());
    drain(plans_);
    const bool new_ring = drain(rings_);
    signalfd_siginfo info{};
    while (read(signals, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      if (info.ssi_signo != SIGCHLD) on_signal(static_cast<int>(info.ssi_signo));
    }
    collect();
    look_at_plan();
    look_at_stacks();
    advance();
    look_at_standbys();
    if (new_ring && ranks_.choose_rings()) publish_rings();
    publish_status();
    const int64_t now = monotonic_ns();
    if (now - last_second_ns_ >= kSecondNs) {
      last_second_ns_ = now;
      look_at_agent();
      publish_counters();
    }
  }
  close(signals);
  close(plans_);
  close(rings_);
  output_.drain(500);
  return exit_code_;
}

void Supervisor::watch_for_plans() {
  if (plans_watched_) return;
  plans_watched_ = inotify_add_watch(plans_, path("agent").c_str(), IN_MOVED_TO) >= 0;
}

int Supervisor::pause_ms() const {
  if (stopping_ || terminated_by_ != 0 || ranks_.directory().busy()) return kStoppingMs;
  if (ranks_.standbys().importing()) return kStoppingMs;
  return plans_watched_ ? kWatchedMs : kUnwatchedMs;
}

void Supervisor::look_at_agent() {
  watch_for_plans();
  const int64_t now = monotonic_ns();
  struct stat about{};
  if (stat(path("agent/alive").c_str(), &about) == 0) {
    agent_.see(static_cast<int64_t>(about.st_mtim.tv_sec) * kSecondNs + about.st_mtim.tv_nsec, now);
  }
  const bool gone = agent_.gone(now);
  if (gone == agent_gone_) return;
  agent_gone_ = gone;
  fprintf(stderr, gone ? "falcon-launch: nothing from the agent for 60 s; what runs goes on, nobody restarts it\n"
                       : "falcon-launch: the agent is back\n");
}

void Supervisor::collect() {
  const std::vector<int> ended = ranks_.reap();
  if (!stopping_ && terminated_by_ == 0) ranks_.look_at_survivors();
  for (const int local_rank : ended) output_.settle(local_rank, kSettleMs);
}

void Supervisor::look_at_plan() {
  const std::string text = read_file(path("agent/plan"));
  if (text.empty() || text == plan_text_ || terminated_by_ != 0) return;
  plan_text_ = text;
  const auto plan = parse_plan(text, &plan_error_);
  if (!plan) {
    fprintf(stderr, "falcon-launch: agent/plan: %s\n", plan_error_.c_str());
    return;
  }
  if (plan->generation < plan_.generation) return;
  const bool newer = plan->generation > plan_.generation;
  plan_ = *plan;
  if (plan_.procs == 0) plan_.procs = options_.procs;
  if (newer) {
    started_ = false;
    start_error_.clear();
    begin_stop();
  }
}

// A new text asks for the stacks anew.
void Supervisor::look_at_stacks() {
  std::string stacks = read_file(path("agent/stacks"));
  if (!stacks.empty() && stacks != stacks_asked_) {
    stacks_asked_ = std::move(stacks);
    take_stacks(path("launch/stacks"), ranks_.own_processes());
  }
  std::string samples = read_file(path("agent/samples"));
  if (!samples.empty() && samples != samples_asked_) {
    samples_asked_ = std::move(samples);
    take_samples(path("launch/stacks"), ranks_.own_processes(), samples_asked_);
  }
}

// They outlive their generation, whose successor they become, but not the pod.
void Supervisor::look_at_standbys() {
  if (terminated_by_ != 0 || plan_.phase == Phase::kFinish) {
    ranks_.standbys().end();
    return;
  }
  const bool awaits_ranks = plan_.phase == Phase::kStop && plan_.standby != Standby::kNone && !stopping_;
  if (awaits_ranks || (started_ && ranks_.running())) ranks_.look_at_standbys(plan_);
}

void Supervisor::begin_stop() {
  stopping_ = true;
  stop_since_ns_ = monotonic_ns();
  killing_since_ns_ = 0;
  const StopTerms terms{SIGTERM, options_.restart_grace_seconds * kSecondNs, kRestartGraceNs};
  const bool over = plan_.phase == Phase::kFinish && ranks_.ended_well();
  ranks_.stop(terms, !over);
}

void Supervisor::advance() {
  const int64_t now = monotonic_ns();
  if (terminated_by_ != 0) {
    if (ranks_.await_ends()) {
      // Ranks that handle the signal may use all of the time there is: what they have saved so far goes out meanwhile.
      if (now - stop_since_ns_ > options_.restart_grace_seconds * kSecondNs / 2) ranks_.rescuer().begin();
      return;
    }
    if (!ranks_.kill_all() || !is_saved(stop_since_ns_)) return;
    done_ = true;
    exit_code_ = own_exit_code();
    // Work that was cut short is no success. Whether a folder in memory is durable, the exit code cannot say.
    const bool done = ended_before_signal_ && options_.directory.empty();
    if (exit_code_ == 0 && !done) exit_code_ = 128 + terminated_by_;
    return;
  }
  if (plan_.generation == 0) return;
  if (plan_.phase == Phase::kFinish && !stopping_) begin_stop();
  if (stopping_) finish_stop();
  if (stopping_) return;
  if (plan_.phase == Phase::kFinish) {
    if (!ranks_.rescuer().over(stop_since_ns_ + options_.restart_grace_seconds * kSecondNs)) return;
    done_ = true;
    exit_code_ = plan_.exit_code;
    return;
  }
  if (plan_.phase == Phase::kStop) ranks_.check().look(plan_);
  if (plan_.phase == Phase::kRun && !started_) fill_and_start();
  ranks_.smoke().look(plan_.smoke);  // behind the start, which waits for nothing
  if (started_) ranks_.links().look(ranks_.running() ? plan_.links : 0);
  if (started_) ranks_.directory().look(plan_, ranks_.failed(), ranks_.ended_well());
  const bool ended = started_ && !ranks_.running();
  if (!ended) {
    ended_since_ns_ = 0;
  } else if (ended_since_ns_ == 0) {
    ended_since_ns_ = now;
  } else if (now - ended_since_ns_ > Heartbeat::kPatienceNs && agent_gone_ &&
             is_saved(ended_since_ns_ + Heartbeat::kPatienceNs)) {
    done_ = true;
    exit_code_ = own_exit_code();
  }
}

// Whether all that the pod's memory has goes on in a folder, or cannot get there in the time that began then.
bool Supervisor::is_saved(int64_t since_ns) {
  const bool directory = ranks_.directory().flush(ranks_.programs_ended_well());
  const bool store = ranks_.rescuer().over(since_ns + options_.restart_grace_seconds * kSecondNs - kMarginNs);
  return directory && store;
}

// Ranks that take the signal which ends the pod have all the time that the kubelet leaves, but for what the copy of a
// folder in memory needs when they are dead.
StopTerms Supervisor::pod_terms(int number) const {
  int64_t most_ns = kEndlessNs;
  if (options_.grace_seconds >= 0) {
    most_ns = options_.grace_seconds * kSecondNs;
  } else if (!options_.directory.empty()) {
    const int64_t grace_ns = options_.restart_grace_seconds * kSecondNs;
    most_ns = grace_ns - std::min(grace_ns / 4, kMostFlushNs);
  }
  return {number, most_ns, most_ns, false};
}

void Supervisor::finish_stop() {
  if (ranks_.await_ends()) return;
  const int64_t now = monotonic_ns();
  if (killing_since_ns_ == 0) killing_since_ns_ = now;
  if (!ranks_.kill_all()) {
    status_.stuck = now - killing_since_ns_ > kStuckNs;
    return;
  }
  status_.stuck = false;
  // Before the answer: the next generation begins when all pods have answered, with all that is finished.
  if (!ranks_.directory().flush(ranks_.programs_ended_well())) return;
  stopping_ = false;
  status_.dead_below = plan_.generation;
}

void Supervisor::fill_and_start() {
  ranks_.check().end();
  const Directory::Filling filling = ranks_.directory().fill(plan_);
  if (filling == Directory::Filling::kGoing) return;
  start(filling == Directory::Filling::kFailed ? ranks_.directory().error() : "");
}

void Supervisor::start(const std::string& hindrance) {
  started_ = true;
  remove_files(path("launch/rings"));
  remove_stacks_but(path("launch/stacks"), ranks_.standbys().pids());
  if (hindrance.empty()) {
    start_error_ = ranks_.start(plan_);
  } else {
    ranks_.forget();
    start_error_ = hindrance;
  }
  ranks_.choose_rings();
  publish_rings();
  schedules_ = {};
  last_sample_ns_ = 0;
  if (!start_error_.empty()) {
    fprintf(stderr, "falcon-launch: cannot start the training command: %s\n", start_error_.c_str());
    ranks_.kill_all();
  }
}

void Supervisor::on_signal(int number) {
  collect();  // ranks that ended before the signal is passed on have ended by themselves
  if (!SignalRouting::is_ending(number) || terminated_by_ != 0) {
    ranks_.forward(number);
    return;
  }
  terminated_by_ = number;
  ended_before_signal_ = started_ && !stopping_ && !ranks_.running();
  stop_since_ns_ = monotonic_ns();
  ranks_.stop(pod_terms(number), true);
}

void Supervisor::publish_status() {
  status_.generation = plan_.generation;
  status_.untracked = ranks_.untracked();
  status_.error = plan_error_.empty() ? start_error_ : "agent/plan: " + plan_error_;
  status_.oom_kills = ranks_.oom_kills();
  status_.oom_kills_before = ranks_.oom_kills_before();
  status_.standby = ranks_.standbys().report();
  status_.check = ranks_.check().report();
  status_.smoke = ranks_.smoke().report();
  status_.links = ranks_.links().report();
  status_.ranks = ranks_.reports();
  if (stopping_ || (terminated_by_ != 0 && !ended_before_signal_)) {
    status_.state = "Stopping";
  } else if (plan_.generation == 0) {
    status_.state = "Idle";
  } else if (!started_) {
    status_.state = "Stopped";
  } else {
    status_.state = ranks_.running() ? "Running" : "Exited";
  }
  std::string text = status_json(status_);
  if (text == published_) return;
  if (write_file(path("launch/status.json"), text)) published_ = std::move(text);
}

void Supervisor::publish_counters() {
  const int64_t now = monotonic_ns();
  const CgroupCounters cgroup = read_cgroup();
  ranks_.note(cgroup);
  if (last_sample_ns_ == 0 || now - last_sample_ns_ >= kSampleNs) {
    last_sample_ns_ = now;
    if (ranks_.choose_rings()) publish_rings();  // a process may have died without a new ring
    remove_dead_stacks(path("launch/stacks"));
    schedules_ = {unix_ns(), ranks_.sample()};
  }
  write_file(path("launch/counters.json"), counters_json(unix_ns(), cgroup, schedules_, volumes_.newest()));
}

void Supervisor::publish_rings() { write_file(path("launch/rings.json"), rings_json(ranks_.rings())); }

int Supervisor::own_exit_code() const {
  for (const RankReport& rank : ranks_.reports()) {
    if (rank.signal) return 128 + *rank.signal;
    if (rank.exit_code.value_or(1) != 0) return rank.exit_code.value_or(1);
  }
  return start_error_.empty() ? 0 : 127;
}

}  // namespace falcon
