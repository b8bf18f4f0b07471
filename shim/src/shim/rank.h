// This process as a rank: its ring, its communicators, and whether it records at all.
#pragma once

#include <atomic>
#include <cstdint>

#include "ring.h"

namespace falcon {

// One communicator; lives in a table of fixed size, so that a call needs no lock and no allocation.
struct Communicator {
  std::atomic<const void*> handle;
  std::atomic<uint32_t> calls;
  uint32_t id;
  int32_t rank;
  int32_t size;
};

class Rank {
 public:
  // The rank that this process is, or null while it is none: before its first collective, in a forked child, where
  // Falcon is switched off or anything of ours failed. A process becomes a rank here, by its first collective.
  static Rank* current();

  // The communicator with this handle; new ones get the next id and a descriptor record. Null when the table is full.
  Communicator* communicator(const void* handle, int32_t rank, int32_t size);

  Ring& ring() { return *ring_; }

 private:
  static constexpr int kCommunicators = 256;

  bool activate();
  bool recording() const;

  Ring* ring_;
  const std::atomic<uint32_t>* mode_;  // the control file's; null: track
  std::atomic<uint32_t> count_;
  Communicator communicators_[kCommunicators];
  alignas(Ring) char ring_storage_[sizeof(Ring)];
};

}  // namespace falcon
