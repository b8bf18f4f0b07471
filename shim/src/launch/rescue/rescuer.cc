#include "rescue/rescuer.h"

#include <signal.h>

#include <cstdio>

#include "command/environment.h"
#include "command/start.h"
#include "common/clock.h"

namespace falcon {
namespace {

constexpr char kOwnProgram[] = "/proc/self/exe";

}  // namespace

void Rescuer::start() {
  begun_ = true;
  const Started started = start_command({kOwnProgram, "rescue", store_}, own_environment(), {}, [] {});
  pid_ = started.pid;
  if (!started.error.empty()) {
    fprintf(stderr, "falcon-launch: checkpoints in memory are lost with the pod: %s\n", started.error.c_str());
  }
}

void Rescuer::begin() {
  if (!store_.empty() && !begun_) start();
}

bool Rescuer::over(int64_t deadline_ns) {
  if (store_.empty()) return true;
  if (pid_ > 0 && monotonic_ns() > deadline_ns) {
    kill(pid_, SIGKILL);
    fprintf(stderr, "falcon-launch: the pod's time is over before all checkpoints in memory are in their folder\n");
    return true;  // a process that waits for a volume that hangs cannot even be killed
  }
  if (pid_ > 0) return false;
  if (last_ || monotonic_ns() > deadline_ns) return true;
  last_ = true;
  start();
  return pid_ <= 0;
}

bool Rescuer::ended(pid_t pid) {
  if (pid != pid_) return false;
  pid_ = -1;
  return true;
}

}  // namespace falcon
