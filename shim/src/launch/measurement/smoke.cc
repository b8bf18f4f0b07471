#include "measurement/smoke.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "command/environment.h"
#include "command/start.h"
#include "common/clock.h"
#include "common/files.h"

namespace falcon {
namespace {

constexpr int64_t kMostNs = 5 * kSecondNs;  // on a machine that hardly computes
constexpr int kLowest = 19;

}  // namespace

void Smoke::look(int number) {
  if (pid_ > 0 && monotonic_ns() > until_ns_) {
    report_.error = "did not end in time";
    end();
  }
  if (number == 0 || number == report_.number) return;
  end();
  report_ = {};
  report_.number = number;
  start();
}

void Smoke::start() {
  const int out = fresh_file(output());
  if (out < 0) {
    report_.error = output() + ": " + strerror(errno);
    return;
  }
  const Started started = start_command({"/proc/self/exe", "smoke"}, own_environment(), {out, STDERR_FILENO},
                                        [] { setpriority(PRIO_PROCESS, 0, kLowest); });
  close(out);
  report_.error = started.error;
  report_.running = started.error.empty();
  pid_ = started.pid;
  until_ns_ = monotonic_ns() + kMostNs;
}

bool Smoke::ended(pid_t pid, int status) {
  if (pid != pid_) return false;
  pid_ = -1;
  report_.running = false;
  if (report_.error.empty()) report_.error = failure_of(status);
  return true;
}

void Smoke::end() const {
  if (pid_ > 0) kill(-pid_, SIGKILL);
}

}  // namespace falcon
