// Determines which end was an OOM kill: the cgroup counts its kills, and does not say which process they met.
#pragma once

#include <cstdint>

#include "process/counters.h"

namespace falcon {

// A counted kill explains one end, and only one that follows it within kExplainsNs: a big process takes seconds to die,
// and a launcher whose worker was killed gives the others up to 30 s before it fails itself.
class OomKills {
 public:
  static constexpr int64_t kExplainsNs = 40'000'000'000;

  // A new generation: what was counted before is no evidence.
  void begin(Counter kills);

  // A reading of the counter; an unknown reading says nothing.
  void note(Counter kills, int64_t now_ns);

  // Whether a kill explains a process's end now; each call that says so uses one up.
  bool explains(int64_t now_ns);

  // Since the generation began; nothing: unknown.
  Counter count() const;

  // In the container's life before the generation began; nothing: unknown.
  Counter before() const { return first_; }

 private:
  Counter first_;
  Counter last_;
  int64_t unexplained_ = 0;
  int64_t newest_ns_ = 0;
};

}  // namespace falcon
