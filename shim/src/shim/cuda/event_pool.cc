#include "cuda/event_pool.h"

#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace falcon {
namespace {

std::atomic<Pool*> g_pool{nullptr};

}  // namespace

Pool* Pool::own() {
  Pool* known = g_pool.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  void* mapped =
      mmap(nullptr, sizeof(Pool), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (madvise(mapped, sizeof(Pool), MADV_WIPEONFORK) == 0 &&
      g_pool.compare_exchange_strong(known, static_cast<Pool*>(mapped), std::memory_order_acq_rel)) {
    return static_cast<Pool*>(mapped);
  }
  munmap(mapped, sizeof(Pool));
  return known;
}

uint32_t* Pool::free_of(Context context) {
  for (uint32_t i = 0; i < kContexts; ++i) {
    if (contexts_[i] == nullptr) contexts_[i] = context;
    if (contexts_[i] == context) return &free_[i];
  }
  return nullptr;
}

Sample* Pool::take(Context context) {
  const Locked locked(&lock_);
  uint32_t* free = free_of(context);
  if (free == nullptr || *free == 0) return nullptr;
  Sample* sample = &samples_[*free - 1];
  *free = sample->next;
  sample->faults = 0;
  taken.fetch_add(1, std::memory_order_seq_cst);
  return sample;
}

bool Pool::push(Sample* sample, const void* stream) {
  const Locked locked(&lock_);
  Lane* own = nullptr;
  for (Lane& lane : lanes_) {
    const bool empty = lane.head.load(std::memory_order_relaxed) == 0;
    if (!empty && lane.stream == stream && lane.context == sample->context) {
      samples_[lane.tail - 1].next = place_of(sample);
      lane.tail = place_of(sample);
      sample->next = 0;
      return true;
    }
    if (empty && own == nullptr) own = &lane;
  }
  if (own == nullptr) return false;
  own->context = sample->context;
  own->stream = stream;
  own->tail = place_of(sample);
  sample->next = 0;
  own->head.store(own->tail, std::memory_order_release);
  return true;
}

void Pool::free(Sample* sample) {
  uint32_t* free = free_of(sample->context);
  sample->next = *free;
  *free = place_of(sample);
  taken.fetch_sub(1, std::memory_order_relaxed);
}

void Pool::give_back(Sample* sample) {
  const Locked locked(&lock_);
  free(sample);
}

bool Pool::add(Context context, Event first, Event second) {
  const Locked locked(&lock_);
  const uint32_t made = made_.load(std::memory_order_relaxed);
  uint32_t* free = free_of(context);
  if (made == kSamples || free == nullptr) return false;
  Sample* sample = &samples_[made];
  sample->context = context;
  sample->first = first;
  sample->second = second;
  sample->next = *free;
  *free = place_of(sample);
  made_.store(made + 1, std::memory_order_relaxed);
  return true;
}

Sample* Pool::first_of(uint32_t lane) {
  const uint32_t head = lanes_[lane].head.load(std::memory_order_acquire);
  return head == 0 ? nullptr : &samples_[head - 1];
}

void Pool::pop(uint32_t lane) {
  const Locked locked(&lock_);
  Sample* sample = &samples_[lanes_[lane].head.load(std::memory_order_relaxed) - 1];
  lanes_[lane].head.store(sample->next, std::memory_order_relaxed);
  free(sample);
}

}  // namespace falcon
