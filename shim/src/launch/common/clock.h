// Reads two clocks: one for what is written down, one for waiting.
#pragma once

#include <time.h>

#include <cstdint>

namespace falcon {

constexpr int64_t kSecondNs = 1000000000;

inline int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * kSecondNs + now.tv_nsec;
}

inline int64_t unix_ns() { return clock_ns(CLOCK_REALTIME); }
inline int64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

}  // namespace falcon
