// Runs the smoke test of the machine while ranks are started after a failure: our own products on all permitted CPUs
// for a fifth of a second (bench.h). It delays no rank: it begins when the processes before are dead, while the pods'
// answers are gathered, and has the lowest priority next to the ranks that start meanwhile.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "command/options.h"
#include "wire/report.h"

namespace falcon {

class Smoke {
 public:
  explicit Smoke(const Options& options) : options_(options) {}

  // Starts the test of that number, once, and ends one that takes too long. 0: none is wanted.
  void look(int number);

  // A process has ended; true if it was the test's.
  bool ended(pid_t pid, int status);

  // Its number is 0 until something was tested.
  const CheckReport& report() const { return report_; }

  pid_t pid() const { return pid_; }

 private:
  void start();
  void end() const;
  std::string output() const { return options_.run_dir + "/launch/smoke"; }

  const Options& options_;
  CheckReport report_;
  pid_t pid_ = -1;
  int64_t until_ns_ = 0;
};

}  // namespace falcon
