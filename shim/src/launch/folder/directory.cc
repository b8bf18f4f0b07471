#include "folder/directory.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "command/environment.h"
#include "command/start.h"
#include "common/clock.h"

namespace falcon {
namespace {

constexpr char kOwnProgram[] = "/proc/self/exe";
constexpr int64_t kAgainNs = 5 * kSecondNs;  // between two starts of a process that ends by itself
constexpr int64_t kLateNs = 5 * kSecondNs;   // it ends by itself when the time is over, unless its volume hangs

}  // namespace

std::string Directory::start(const Plan& plan, bool resume) {
  int ends[2];
  if (pipe2(ends, O_NONBLOCK) != 0) return std::string("pipe: ") + strerror(errno);
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  std::vector<std::string> command{kOwnProgram,
                                   "behind",
                                   "--memory",
                                   options_.directory,
                                   "--memory-bytes",
                                   std::to_string(options_.directory_bytes),
                                   "--folder",
                                   options_.directory_folder,
                                   "--owner",
                                   options_.directory_owner,
                                   "--generation",
                                   std::to_string(plan.generation),
                                   "--replica",
                                   std::to_string(plan.node_rank),
                                   "--replicas",
                                   std::to_string(plan.nnodes),
                                   "--bytes-per-second",
                                   std::to_string(options_.directory_bytes_per_second),
                                   "--flush-seconds",
                                   std::to_string(options_.restart_grace_seconds),
                                   "--status",
                                   options_.run_dir + "/launch/directory.json",
                                   "--ready",
                                   std::to_string(ends[1]),
                                   "--resume",
                                   resume ? "yes" : "no"};
  const Started started = start_command(command, own_environment(), {}, [] {});
  close(ends[1]);
  if (!started.error.empty()) {
    close(ends[0]);
    return started.error;
  }
  pid_ = started.pid;
  ready_ = ends[0];
  heard_.clear();
  started_ns_ = monotonic_ns();
  told_failed_ = told_well_ = told_stop_ = false;
  flush_since_ns_ = 0;
  return "";
}

void Directory::hear() {
  char text[1024];
  ssize_t count = 0;
  while (ready_ >= 0 && (count = read(ready_, text, sizeof(text))) > 0) heard_.append(text, static_cast<size_t>(count));
  if (ready_ >= 0 && (count == 0 || errno != EAGAIN)) {
    close(ready_);
    ready_ = -1;
  }
}

Directory::Filling Directory::fill(const Plan& plan) {
  if (options_.directory.empty()) return Filling::kDone;
  if (!filling_) {
    error_ = start(plan, false);
    filling_ = error_.empty();
    if (!filling_) return Filling::kFailed;
  }
  hear();
  if (ready_ >= 0) return Filling::kGoing;
  filling_ = false;
  filled_ = heard_ == "ok";
  if (filled_) return Filling::kDone;
  error_ = options_.directory + " could not be filled from " + options_.directory_folder + ": " +
           (heard_.empty() ? "its process has ended" : heard_);
  return Filling::kFailed;
}

void Directory::tell(int number, bool* told) {
  if (*told || pid_ <= 0) return;
  *told = true;
  kill(pid_, number);
}

void Directory::look(const Plan& plan, bool failed, bool well) {
  if (!filled_) return;
  hear();
  if (pid_ <= 0 && monotonic_ns() - started_ns_ >= kAgainNs) error_ = start(plan, true);
  if (failed) tell(SIGUSR2, &told_failed_);
  if (well) tell(SIGUSR1, &told_well_);
}

bool Directory::flush(bool well) {
  filled_ = filling_ = false;
  if (pid_ <= 0) {
    flush_since_ns_ = 0;
    return true;
  }
  const int64_t now = monotonic_ns();
  if (flush_since_ns_ == 0) flush_since_ns_ = now;
  if (well) tell(SIGUSR1, &told_well_);
  tell(SIGTERM, &told_stop_);
  if (now - flush_since_ns_ > options_.restart_grace_seconds * kSecondNs + kLateNs) kill(pid_, SIGKILL);
  return false;
}

bool Directory::ended(pid_t pid) {
  if (pid != pid_) return false;
  pid_ = -1;
  hear();
  return true;
}

}  // namespace falcon
