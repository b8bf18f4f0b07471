// Represents this process as a rank: its ring, its communicators, its gate, and whether it records at all.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/control.h"
#include "common/ring.h"

namespace falcon {

// A communicator in this process. Never moves; its place is another communicator's once it is gone and no place is
// left.
struct Communicator {
  std::atomic<const void*> handle;          // the library's; kRetired once it is gone
  std::atomic<uint64_t> id;                 // from 1 in the order of first appearance
  std::atomic<uint64_t> shape;              // rank and size; 0 while they are not known
  std::atomic<uint32_t> parent;             // id of the communicator it was split from, 0: none
  std::atomic<uint32_t> error;              // the last asynchronous error that was recorded
  std::atomic<uint32_t> singles;            // point-to-point calls, all peers together
  std::atomic<uint32_t> exchanges;          // groups of them that are one record
  std::atomic<uint32_t> exchanging;         // 1: one of its groups was such an exchange
  std::atomic<uint32_t> singles_described;  // 1: its point-to-point descriptor is written
  std::atomic<const void*> transport;       // Gloo: the transport context of its point-to-point calls
  std::atomic<Counter*> calls;              // collectives
  std::atomic<uint64_t> tag;                // Gloo: of the last all-reduce, plus 1
  std::atomic<uint32_t> untagged;           // Gloo, 1: two all-reduces had the same
};

// A call that was counted.
struct Counted {
  Counter* counter;  // to be raised when the call is done; null: it is counted by others
  uint64_t key;      // of the counter, as long as it is this call's
  uint64_t nth;      // what the counter says once this call is done, from 1
};

// This rank's next call in a communicator.
struct Membership {
  uint64_t id;      // from 1 in the order of first appearance; 0: not known
  uint32_t call;    // its number in that communicator
  Counted counted;  // its counter is never null, but for an exchange
};

class Rank {
 public:
  // The rank that this process is, or null while it is none: before its first collective, in a forked child, where
  // anything of ours failed. A process becomes a rank here, by its first collective.
  static Rank* current();

  // The rank that this process already is; makes none.
  static Rank* existing();

  // The communicator with this handle; null if it was never met or the table is full.
  Communicator* find(const void* handle);

  // Finds or adds a communicator. One whose rank and size are known (rank >= 0) gets its descriptor record; an entry
  // with another shape is an address that was freed and used again: it is retired.
  Communicator* introduce(const void* handle, int32_t rank, int32_t size, uint32_t parent);

  // Fills in the rank and size of a communicator that was introduced without.
  void describe(Communicator* communicator, int32_t rank, int32_t size);

  // The communicator with this transport context; null if it was never met.
  Communicator* with_transport(const void* transport);

  // The communicators in the order of their ids; null beyond the last.
  Communicator* at(uint32_t index) {
    return index < kCommunicators && communicators_[index].handle.load(std::memory_order_acquire) != nullptr
               ? &communicators_[index]
               : nullptr;
  }

  // Whether `at` has all communicators that there were, also those that are gone.
  bool knows_all() const { return !forgot_.load(std::memory_order_acquire); }

  // The communicator is gone; its address may come back as another communicator.
  void retire(Communicator* communicator);

  // Counts a collective (null: in a communicator that is not known).
  Membership join(Communicator* communicator);

  // Counts a send to, or a receive from, a peer.
  Membership join(Communicator* communicator, Traffic traffic, int32_t peer) {
    return number_single(communicator, count_single(communicator, traffic, peer));
  }

  // The two halves of that: in a group of calls, only those get a number that are records of their own.
  Counted count_single(Communicator* communicator, Traffic traffic, int32_t peer);
  Membership number_single(Communicator* communicator, const Counted& counted);

  // Numbers a group of sends and receives, each of which was counted, as one exchange.
  Membership join_exchange(Communicator* communicator);

  // Numbers a receive whose sender is not known yet; `arrived` counts it.
  Membership join_unknown(Communicator* communicator);

  // Counts a receive of this communicator (as in Record::comm) that `join_unknown` numbered. Returns the counter
  // to raise when the receive is done. Never null.
  Counter* arrived(uint64_t comm, int32_t source);

  uint64_t id_of(const Communicator* communicator) const {
    return communicator == nullptr ? 0 : communicator->id.load(std::memory_order_relaxed);
  }

  // Whether calls leave records. They are counted in any case: ranks that are switched on one after the other agree on
  // the numbers of their calls, and can be paused all the while.
  bool recording() const { return control_.mode() != Mode::kOff; }

  // Of how many all-reduces one has its result hashed; 0: none.
  uint32_t verify_every() const { return control_.verify_every(); }

  // Blocks while the gate is closed for this rank. For the outermost level of a call only, before it is counted.
  void pass_gate() {
    if (control_.armed()) wait_at_gate();
  }

  // A small number for a stream, the same for the same handle.
  uint16_t stream(const void* handle);

  uint32_t next_group() { return groups_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Whether the device shall time this call.
  bool sampled() { return control_.sampled(device_calls_.fetch_add(1, std::memory_order_relaxed)); }

  // Counts a launch of a graph, whose handle stands for a communicator that only this rank is in.
  Membership launch(const void* graph);

  Ring& ring() { return *ring_; }
  const Control& control() const { return control_; }

 private:
  static constexpr uint32_t kCommunicators = 1024;
  static constexpr uint32_t kHints = 64;
  static constexpr uint32_t kStreams = 256;

  bool activate();
  Communicator* add(const void* handle, uint32_t parent);
  void describe_singles(Communicator* communicator);
  void wait_at_gate();
  bool targets_met(uint64_t* table_epoch);
  std::atomic<uint32_t>& hint(const void* handle);

  Ring* ring_;
  Control control_;
  std::atomic<uint64_t> opened_epoch_;  // the gate that this rank gave up or saw opened
  Lock adding_;
  uint64_t ids_;              // communicators so far
  std::atomic<bool> forgot_;  // the table was full: one of them gave up its place, or got none
  std::atomic<uint32_t> groups_;
  std::atomic<uint32_t> device_calls_;
  Counter elsewhere_;  // calls in communicators that are not known, or beyond the table of counters
  std::atomic<const void*> streams_[kStreams];
  std::atomic<const void*> graphs_[kStreams];
  std::atomic<uint32_t> hints_[kHints];  // where a handle was last found: index + 1
  Communicator communicators_[kCommunicators];
  alignas(Ring) char ring_storage_[sizeof(Ring)];
};

}  // namespace falcon
