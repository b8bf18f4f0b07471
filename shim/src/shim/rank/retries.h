// Limits and records set-up calls that are tried again in place: how often, and after which pause.
#pragma once

#include <cstdint>

namespace falcon {

// `spec.recovery.retries`, as falcon-launch hands it over; 0 without falcon-launch.
uint32_t retries_allowed();

// The pause before the nth retry, from 1: 1, 2, 4, 4 … s, each by up to a quarter shorter or longer, so that ranks
// which failed together come back apart.
uint64_t retry_pause_ns(uint32_t nth);

struct Retry {
  uint32_t nth;  // of the call, from 1
  uint64_t pause_ns;
  uint64_t error;    // NCCL's; 0: the library has no numbers
  int32_t own_rank;  // in the communicator that is being made
};

// Records the retry and waits. Keeps errno.
void wait_for_retry(const Retry& retry);

}  // namespace falcon
