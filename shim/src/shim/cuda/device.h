// Measures device times of enqueued calls, by CUDA events that a helper thread polls.
#pragma once

#include <cstdint>

#include "common/ring.h"
#include "rank/rank.h"

namespace falcon {

// What the device is asked to time: one or, in a group, several calls on one stream.
struct Timed {
  Record record;  // of the call, as it was enqueued
  Counted counted;
};

// Records that the device is done with a call, and counts it; `duration_ns` is the device's. Any thread.
void record_completion(Rank* rank, const Timed& call, uint64_t duration_ns);

class Sample;

// Whether work on the stream goes into a graph instead of to the device. False where CUDA is not loaded.
bool capturing(const void* stream);

// Records the first event of a pair on the stream. Null: CUDA is not loaded, the stream captures, or the pool has no
// pair for this context yet (the helper makes them; a call never creates an event, since that could break the capture
// of another thread).
Sample* begin_sample(Rank* rank, const void* stream);

// Records the second event; once the device has passed it, each call gets a kCompleted record. At most kTimedCalls.
constexpr uint32_t kTimedCalls = 32;
void end_sample(Sample* sample, const void* stream, const Timed* calls, uint32_t count);

}  // namespace falcon
