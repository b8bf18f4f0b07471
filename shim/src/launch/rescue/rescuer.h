// Starts and follows, for the launcher, the process that saves checkpoints in memory when the pod ends (rescue.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace falcon {

class Rescuer {
 public:
  // `store`: the folder of the ranks' buffers; empty: there are none.
  explicit Rescuer(std::string store) : store_(std::move(store)) {}

  // Begins while ranks still run, where much of the pod's time is over.
  void begin();

  // When no rank is left: true when nothing is to be done any more, or the time is over.
  bool over(int64_t deadline_ns);

  // A process has ended; true if it was this one.
  bool ended(pid_t pid);

  pid_t pid() const { return pid_; }

 private:
  void start();

  std::string store_;
  pid_t pid_ = -1;
  bool begun_ = false;  // at all
  bool last_ = false;   // with no rank left
};

}  // namespace falcon
