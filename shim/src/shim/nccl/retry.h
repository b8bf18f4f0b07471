// Tries a communicator's set-up call again, in place, if it failed before its root had heard of this rank
// (docs/adr/0061).
//
// NCCL's root counts each rank once, and stops when one comes twice; a rank that has been counted and comes again would
// leave its peers waiting. So a call is tried again only where the library's own words say that the connection to the
// root was never made.
#pragma once

#include <cstdint>

#include "nccl/api.h"

namespace falcon::nccl {

// The tries of one set-up call; made before the first of them.
class Tries {
 public:
  // `root`: the unique id that names the root; null: the call is not tried again.
  explicit Tries(const UniqueId* root);

  // Whether the call, which ended with this error as this rank of the communicator, is to be made once more. Waits
  // before it says so, records the retry, and makes the library forget its last words.
  bool again(Result error, int32_t rank);

 private:
  const UniqueId* root_;
  uint64_t began_ns_;
  uint32_t retries_ = 0;
};

}  // namespace falcon::nccl
