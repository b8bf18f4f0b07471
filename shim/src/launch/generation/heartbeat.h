// Checks whether a file is still being touched by the process that owns it.
#pragma once

#include <cstdint>

namespace falcon {

// Counts the time since the file's stamp last changed, on our own clock: a step of the wall clock makes no process
// stale.
class Heartbeat {
 public:
  static constexpr int64_t kPatienceNs = 60'000'000'000;

  explicit Heartbeat(int64_t now_ns) : heard_ns_(now_ns) {}

  void see(int64_t stamp_ns, int64_t now_ns) {
    if (stamp_ns == stamp_ns_) return;
    stamp_ns_ = stamp_ns;
    heard_ns_ = now_ns;
  }

  bool gone(int64_t now_ns) const { return now_ns - heard_ns_ > kPatienceNs; }

 private:
  int64_t stamp_ns_ = 0;
  int64_t heard_ns_;
};

}  // namespace falcon
