#include "measurement/check.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "command/environment.h"
#include "command/executor.h"
#include "command/start.h"
#include "common/clock.h"
#include "common/files.h"

namespace falcon {
namespace {

// Beside the time under load: PyTorch's imports and a GPU's first context take tens of seconds on a cold disk.
constexpr int64_t kStartNs = 60 * kSecondNs;
// Of the links' executor, which waits until the slowest of the job's machines has measured. It ends earlier by itself.
constexpr int64_t kLinksNs = 180 * kSecondNs;
constexpr char kOwnProgram[] = "/proc/self/exe";

std::string seconds(int milliseconds) {
  char text[32];
  snprintf(text, sizeof(text), "%d.%03d", milliseconds / 1000, milliseconds % 1000);
  return text;
}

}  // namespace

void Check::look(const Plan& plan) {
  if (pid_ > 0 && monotonic_ns() > until_ns_) {
    (report_.linking ? report_.links_error : report_.error) = "did not end in time";
    end();
  }
  if (plan.check == 0 || plan.check == report_.number) return;
  end();
  report_ = {};
  report_.number = plan.check;
  milliseconds_ = plan.check_ms;
  links_ = plan.check_links;
  start();
}

void Check::start() {
  own_ = false;
  if (options_.python.empty()) return start_own();
  const std::string error = run(
      {interpreter(options_), "-m", "falcon_bench", "--size", "full", "--seconds", seconds(milliseconds_), "--json"},
      executor_environment(options_));
  if (!error.empty()) start_own();
}

void Check::start_own() {
  own_ = true;
  report_.error = run({kOwnProgram, "bench", std::to_string(milliseconds_)}, own_environment());
}

void Check::start_links() {
  if (own_) {
    report_.links_error = "the container has no Python of 3.6 or later that could measure the links";
    return;
  }
  const Started started =
      start_command({interpreter(options_), "-m", "falcon_bench.links", std::to_string(report_.number),
                     options_.run_dir + "/agent/links", options_.run_dir + "/launch/links"},
                    executor_environment(options_), {STDERR_FILENO, STDERR_FILENO}, [] {});
  report_.linking = started.error.empty();
  report_.links_error = started.error;
  pid_ = started.pid;
  until_ns_ = monotonic_ns() + kLinksNs;
}

// Why it could not be started; empty where it runs.
std::string Check::run(const std::vector<std::string>& command, const Variables& environment) {
  const int out = fresh_file(output());
  if (out < 0) return output() + ": " + strerror(errno);
  const Started started = start_command(command, environment, {out, STDERR_FILENO}, [] {});
  close(out);
  report_.running = started.error.empty();
  pid_ = started.pid;
  until_ns_ = monotonic_ns() + kStartNs + milliseconds_ * (kSecondNs / 1000);
  return started.error;
}

bool Check::has_printed() const {
  struct stat about{};
  return lstat(output().c_str(), &about) == 0 && about.st_size > 0;
}

bool Check::ended(pid_t pid, int status) {
  if (pid != pid_) return false;
  pid_ = -1;
  std::string& error = report_.linking ? report_.links_error : report_.error;
  const bool linked = report_.linking;
  report_.running = report_.linking = false;
  if (WIFSIGNALED(status)) {
    if (error.empty()) error = failure_of(status);
    return true;
  }
  // An interpreter of another age, or one without its library, ends with a code and without a result.
  if (!linked && !own_ && error.empty() && WEXITSTATUS(status) != 0 && !has_printed()) {
    start_own();
    return true;
  }
  if (WEXITSTATUS(status) > (linked ? 0 : 1)) {  // 1: the benchmark has found something, and its output says what
    error = failure_of(status);
  }
  if (!linked && links_) start_links();
  return true;
}

void Check::end() {
  if (pid_ > 0) kill(-pid_, SIGKILL);
}

}  // namespace falcon
