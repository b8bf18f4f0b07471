#include "measurement/links.h"

#include <signal.h>
#include <unistd.h>

#include "command/executor.h"
#include "command/start.h"
#include "common/clock.h"

namespace falcon {
namespace {

constexpr int64_t kMostNs = 180 * kSecondNs;  // it ends earlier by itself

}  // namespace

void Links::look(int number) {
  if (pid_ > 0 && (number != report_.number || monotonic_ns() > until_ns_)) end();
  if (number == 0 || number == report_.number || pid_ > 0) return;  // the next begins when the last has ended
  report_ = {};
  report_.number = number;
  start();
}

void Links::start() {
  if (options_.python.empty()) {
    report_.error = "the container has no Python of 3.6 or later that could measure the links";
    return;
  }
  const Started started =
      start_command({interpreter(options_), "-m", "falcon_bench.links", std::to_string(report_.number),
                     options_.run_dir + "/agent/probe", options_.run_dir + "/launch/probe", "machine"},
                    executor_environment(options_), {STDERR_FILENO, STDERR_FILENO}, [] {});
  report_.error = started.error;
  report_.running = started.error.empty();
  pid_ = started.pid;
  until_ns_ = monotonic_ns() + kMostNs;
}

bool Links::ended(pid_t pid, int status) {
  if (pid != pid_) return false;
  pid_ = -1;
  report_.running = false;
  report_.error = failure_of(status);
  return true;
}

void Links::end() const { kill(-pid_, SIGKILL); }

}  // namespace falcon
