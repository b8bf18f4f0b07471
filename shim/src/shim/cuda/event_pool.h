// Keeps pairs of CUDA events around calls: the free ones, and for each stream a queue of those that the device has yet
// to pass.
#pragma once

#include "cuda/device.h"
#include "cuda/driver.h"

namespace falcon {

// A pair, and the calls between its events.
class Sample {
 public:
  Context context;
  Event first;
  Event second;
  Rank* rank;
  uint32_t next;    // in its queue, or of those that are free: place + 1
  uint32_t faults;  // questions about it that the driver did not answer, in a row
  uint32_t count;
  Timed calls[kTimedCalls];
};

// The pairs that wait on a stream, in its order: the device passes none before those in front of it.
struct Lane {
  Context context;
  const void* stream;
  std::atomic<uint32_t> head;  // place + 1; 0: it is empty
  uint32_t tail;
};

// Wiped by a fork: a child has neither the helper thread nor a usable CUDA. A page that no pair needed costs nothing.
class Pool {
 public:
  static constexpr uint32_t kSamples = 16384;  // as many calls of one cycle can wait
  static constexpr uint32_t kLanes = 64;

  // The process's own; null: there is no memory for it.
  static Pool* own();

  // A free pair of this context; null: there is none. A hook's, like `push` and `give_back`.
  Sample* take(Context context);
  // Queues a pair whose events are recorded on the stream. False: too many streams wait.
  bool push(Sample* sample, const void* stream);
  void give_back(Sample* sample);

  // The helper's: adds a new pair; false where there is no room. The pair that a stream waits for; null: none.
  bool add(Context context, Event first, Event second);
  Sample* first_of(uint32_t lane);
  void pop(uint32_t lane);

  bool full() const { return made_.load(std::memory_order_relaxed) == kSamples; }

  std::atomic<uint32_t> helper;  // 0 none, 1 running, 2 could not be started or has ended
  std::atomic<uint32_t> ending;  // 1: the process exits
  std::atomic<Context> wanted;   // a context that ran out of pairs
  std::atomic<uint32_t> taken;   // pairs that are not free
  std::atomic<uint32_t> asleep;  // 1: the helper waits to be woken; a futex
  std::atomic<Rank*> rank;       // whose ring says how the helper fares

 private:
  static constexpr uint32_t kContexts = 16;

  uint32_t* free_of(Context context);
  uint32_t place_of(const Sample* sample) const { return static_cast<uint32_t>(sample - samples_) + 1; }
  void free(Sample* sample);

  Lock lock_;
  std::atomic<uint32_t> made_;
  Context contexts_[kContexts];
  uint32_t free_[kContexts];  // the first of those that are free
  Lane lanes_[kLanes];
  Sample samples_[kSamples];
};

// Sees to it that the helper runs, which follows the pairs; false: it cannot. Wakes it if it sleeps.
bool start_helper(Pool* pool, Rank* rank);
void wake_helper(Pool* pool);

}  // namespace falcon
