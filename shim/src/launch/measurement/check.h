// Measures the machine before the ranks start, in this container: Falcon's benchmark executor (agent/falcon_bench), or
// our own benchmark (bench.h) where there is no Python for it. Afterwards, where the plan wants it, the executor of the
// links waits for the pod's peers and measures the links to them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "command/environment.h"
#include "command/options.h"
#include "wire/plan.h"
#include "wire/report.h"

namespace falcon {

class Check {
 public:
  explicit Check(const Options& options) : options_(options) {}

  // Starts the measurement that the plan asks for, once, and ends one that takes too long.
  void look(const Plan& plan);

  // A process has ended; true if it was the measurement's.
  bool ended(pid_t pid, int status);

  // SIGKILL: what is still measured says nothing any more.
  void end();

  // Its number is 0 until something was measured.
  const CheckReport& report() const { return report_; }

  pid_t pid() const { return pid_; }

 private:
  void start();
  void start_own();
  void start_links();
  std::string run(const std::vector<std::string>& command, const Variables& environment);
  bool has_printed() const;
  std::string output() const { return options_.run_dir + "/launch/check"; }

  const Options& options_;
  CheckReport report_;
  pid_t pid_ = -1;
  int64_t until_ns_ = 0;
  int milliseconds_ = 0;  // under load
  bool links_ = false;    // wanted after the machine's own measurement
  bool own_ = false;      // our own benchmark measures
};

}  // namespace falcon
