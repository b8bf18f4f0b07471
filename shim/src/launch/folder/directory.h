// Starts and follows, for the launcher, the process that copies a folder in memory (copier.h): one a generation.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "command/options.h"
#include "wire/plan.h"

namespace falcon {

class Directory {
 public:
  explicit Directory(const Options& options) : options_(options) {}

  enum class Filling { kGoing, kDone, kFailed };

  // Fills the folder for the plan's generation: to be asked again until it is done. The reason where it failed.
  Filling fill(const Plan& plan);
  const std::string& error() const { return error_; }

  // While the ranks run, and when they have ended: `failed`: one of them has; `well`: all have ended with code 0.
  void look(const Plan& plan, bool failed, bool well);

  // When no rank is left: true when what is finished is in the durable folder, or can no longer get there in time.
  bool flush(bool well);

  // A process has ended; true if it was this one.
  bool ended(pid_t pid);

  bool busy() const { return filling_ || flush_since_ns_ != 0; }
  pid_t pid() const { return pid_; }

 private:
  std::string start(const Plan& plan, bool resume);
  void tell(int number, bool* told);
  void hear();

  const Options& options_;
  pid_t pid_ = -1;
  int ready_ = -1;  // the pipe by which the process says that the folder is filled
  std::string heard_;
  std::string error_;
  bool filling_ = false;
  bool filled_ = false;  // and so to be kept
  bool told_failed_ = false;
  bool told_well_ = false;
  bool told_stop_ = false;
  int64_t flush_since_ns_ = 0;
  int64_t started_ns_ = 0;
};

}  // namespace falcon
