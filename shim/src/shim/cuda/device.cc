// What a hook does around a call that the device shall time. Nothing here waits for the device.

#include "cuda/device.h"

#include <string.h>

#include "cuda/event_pool.h"

namespace falcon {
namespace {

void tell_absent(Rank* rank, NoDeviceTimes why) {
  RingHeader& header = rank->ring().header();
  if (why == NoDeviceTimes::kNone || header.device_times.load(std::memory_order_relaxed) == DeviceTimes::kOff) return;
  header.device_reason.store(why, std::memory_order_relaxed);
  header.device_times.store(DeviceTimes::kOff, std::memory_order_release);
}

}  // namespace

// A completion names its call by communicator and number; the start is when the end was seen, less the device's
// duration, and so up to a poll's interval late.
void record_completion(Rank* rank, const Timed& call, uint64_t duration_ns) {
  Record record = call.record;
  record.kind = Kind::kCompleted;
  record.t_start_ns = monotonic_ns() - duration_ns;
  record.duration_ns = duration_ns;
  rank->ring().append(record);
  Counter* counter = call.counted.counter;
  if (counter == nullptr || counter->key.load(std::memory_order_acquire) != call.counted.key) return;
  uint64_t seen = counter->finished.load(std::memory_order_relaxed);
  while (seen < call.counted.nth && !counter->finished.compare_exchange_weak(seen, call.counted.nth)) {
  }
}

bool capturing(const void* stream) {
  const Driver* cuda = driver();
  int status = 0;
  return cuda != nullptr && cuda->stream_capturing(stream, &status) == 0 && status != 0;
}

Sample* begin_sample(Rank* rank, const void* stream) {
  NoDeviceTimes why = NoDeviceTimes::kNone;
  const Driver* cuda = driver(&why);
  int status = 0;
  if (cuda == nullptr) tell_absent(rank, why);
  // The default stream answers with an error while another stream captures: then it must not be touched.
  if (cuda == nullptr || cuda->stream_capturing(stream, &status) != 0 || status != 0) return nullptr;
  Pool* pool = Pool::own();
  Context context = nullptr;
  if (pool == nullptr || cuda->context_current(&context) != 0 || context == nullptr || !start_helper(pool, rank)) {
    return nullptr;
  }
  Sample* sample = pool->take(context);
  if (sample == nullptr) {
    if (!pool->full()) pool->wanted.store(context, std::memory_order_seq_cst);
  } else if (cuda->event_record(sample->first, stream) == 0) {
    sample->rank = rank;
  } else {
    pool->give_back(sample);
    sample = nullptr;
  }
  wake_helper(pool);
  return sample;
}

void end_sample(Sample* sample, const void* stream, const Timed* calls, uint32_t count) {
  const Driver* cuda = driver();
  Pool* pool = Pool::own();
  if (pool == nullptr) return;  // cannot be: it gave the sample
  sample->count = count < kTimedCalls ? count : kTimedCalls;
  memcpy(sample->calls, calls, sample->count * sizeof(Timed));
  const bool recorded = count > 0 && cuda != nullptr && cuda->event_record(sample->second, stream) == 0;
  if (!recorded || !pool->push(sample, stream)) pool->give_back(sample);
}

}  // namespace falcon
