// This process as a rank: its ring, its communicators, and whether it records at all.
#pragma once

#include <atomic>
#include <cstdint>

#include "ring.h"

namespace falcon {

// This rank's next call in a communicator.
struct Membership {
  uint64_t id;  // from 1 in the order of first appearance; 0: not known
  uint32_t call;
};

class Rank {
 public:
  // The rank that this process is, or null while it is none: before its first collective, in a forked child, where
  // Falcon is switched off or anything of ours failed. A process becomes a rank here, by its first collective.
  static Rank* current();

  // Counts a call in the communicator with this handle (null: not known); a new one gets the next id and a descriptor
  // record. Several threads may meet a new communicator at once: it gets one id.
  Membership join(const void* handle, int32_t rank, int32_t size);

  Ring& ring() { return *ring_; }

 private:
  static constexpr uint32_t kCommunicators = 256;

  // A table of fixed size that only grows, so that a call needs no lock and no allocation.
  struct Communicator {
    std::atomic<const void*> handle;
    std::atomic<uint64_t> shape;  // rank and size; 0 while the thread that found it first is still filling in
    std::atomic<uint32_t> calls;
  };

  bool activate();
  bool recording() const;
  void describe(uint32_t index, int32_t rank, int32_t size);

  Ring* ring_;
  const std::atomic<uint32_t>* mode_;      // the control file's; null: track
  std::atomic<uint32_t> calls_elsewhere_;  // in communicators that are not known
  Communicator communicators_[kCommunicators];
  alignas(Ring) char ring_storage_[sizeof(Ring)];
};

}  // namespace falcon
