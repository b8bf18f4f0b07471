// Measures the machine, and the links to the pod's peers, while the ranks run: the executor waits at its port for
// agent/probe, which the agent writes when all ranks stand still at a cut (core/falcon_core/wire/measurement/probe.py).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "command/options.h"
#include "wire/report.h"

namespace falcon {

class Links {
 public:
  explicit Links(const Options& options) : options_(options) {}

  // Starts the executor of that number, once; ends one that is wanted no more (0, or another number) or takes too long.
  void look(int number);

  // A process has ended; true if it was the executor.
  bool ended(pid_t pid, int status);

  // Its number is 0 until an executor was wanted.
  const CheckReport& report() const { return report_; }

  pid_t pid() const { return pid_; }

 private:
  void start();
  void end() const;

  const Options& options_;
  CheckReport report_;
  pid_t pid_ = -1;
  int64_t until_ns_ = 0;
};

}  // namespace falcon
