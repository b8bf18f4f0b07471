// The driver's interface is used, not the runtime's: every CUDA process has loaded libcuda.so.1, whichever runtime it
// was built with, and its symbols have been the same since CUDA 10. Nothing here waits for the device.

#include "device.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace falcon {
namespace {

using Event = void*;
using Context = void*;
constexpr int kNotReady = 600;
constexpr int kThreadLocalCapture = 1;
constexpr unsigned int kEventDefault = 0;  // with timing

struct Driver {
  int (*event_create)(Event*, unsigned int);
  int (*event_record)(Event, const void*);
  int (*event_query)(Event);
  int (*event_elapsed)(float*, Event, Event);
  int (*stream_capturing)(const void*, int*);
  int (*exchange_capture_mode)(int*);
  int (*context_current)(Context*);
  int (*set_context)(Context);
};

enum SampleState : uint32_t { kEmpty = 0, kFree = 1, kTaken = 2, kRunning = 3 };
constexpr uint32_t kSamples = 1024;
constexpr uint32_t kBatch = 64;  // pairs made at once
constexpr timespec kPoll{0, 500000};
constexpr uint32_t kIdlePolls = 20;  // with nothing to wait for, until the helper sleeps

}  // namespace

class Sample {
 public:
  uint32_t count;
  Context context;
  Event first;
  Event second;
  Rank* rank;
  Timed calls[kTimedCalls];
};

namespace {

// Wiped by a fork: a child has neither the helper thread nor a usable CUDA.
struct Pool {
  std::atomic<uint32_t> helper;  // 0 none, 1 running, 2 could not be started or gave up
  std::atomic<uint32_t> made;    // samples that have events: the first `made`
  std::atomic<Context> wanted;   // a context that ran out of pairs
  std::atomic<uint32_t> next;
  std::atomic<uint32_t> taken;            // samples that are not free
  std::atomic<uint32_t> asleep;           // 1: the helper waits to be woken; a futex
  std::atomic<uint32_t> state[kSamples];  // side by side, since the helper reads them all at every poll
  Sample samples[kSamples];
};

std::atomic<Pool*> g_pool{nullptr};
std::atomic<uint32_t> g_driver_state{0};  // 0 not looked for, 1 being looked for, 2 there, 3 absent
Driver g_driver;

template <typename Function>
bool load(void* library, const char* name, Function* function) {
  *reinterpret_cast<void**>(function) = dlsym(library, name);
  return *function != nullptr;
}

const Driver* driver() {
  uint32_t state = g_driver_state.load(std::memory_order_acquire);
  if (state == 0 && g_driver_state.compare_exchange_strong(state, 1)) {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);  // the reference keeps it
    const bool complete = library != nullptr && load(library, "cuEventCreate", &g_driver.event_create) &&
                          load(library, "cuEventRecord", &g_driver.event_record) &&
                          load(library, "cuEventQuery", &g_driver.event_query) &&
                          load(library, "cuEventElapsedTime", &g_driver.event_elapsed) &&
                          load(library, "cuStreamIsCapturing", &g_driver.stream_capturing) &&
                          load(library, "cuThreadExchangeStreamCaptureMode", &g_driver.exchange_capture_mode) &&
                          load(library, "cuCtxGetCurrent", &g_driver.context_current) &&
                          load(library, "cuCtxSetCurrent", &g_driver.set_context);
    g_driver_state.store(complete ? 2 : 3, std::memory_order_release);
    state = complete ? 2 : 3;
  }
  return state == 2 ? &g_driver : nullptr;
}

Pool* pool() {
  Pool* known = g_pool.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  void* mapped = mmap(nullptr, sizeof(Pool), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (madvise(mapped, sizeof(Pool), MADV_WIPEONFORK) == 0 &&
      g_pool.compare_exchange_strong(known, static_cast<Pool*>(mapped), std::memory_order_acq_rel)) {
    return static_cast<Pool*>(mapped);
  }
  munmap(mapped, sizeof(Pool));
  return known;
}

void free_sample(Pool* own_pool, uint32_t at) {
  own_pool->state[at].store(kFree, std::memory_order_release);
  own_pool->taken.fetch_sub(1, std::memory_order_relaxed);
}

// A full barrier on both sides: either the helper sees what is new before it sleeps, or the call sees it asleep.
void sleep_until_woken(Pool* own_pool) {
  own_pool->asleep.store(1, std::memory_order_seq_cst);
  if (own_pool->taken.load(std::memory_order_seq_cst) == 0 &&
      own_pool->wanted.load(std::memory_order_seq_cst) == nullptr) {
    syscall(SYS_futex, &own_pool->asleep, FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
  }
  own_pool->asleep.store(0, std::memory_order_relaxed);
}

void wake(Pool* own_pool) {
  if (own_pool->asleep.load(std::memory_order_seq_cst) == 0 || own_pool->asleep.exchange(0) == 0) return;
  const int error = errno;
  syscall(SYS_futex, &own_pool->asleep, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  errno = error;
}

void complete(Sample* sample, const Driver& cuda) {
  float milliseconds = 0;
  if (cuda.event_elapsed(&milliseconds, sample->first, sample->second) != 0) return;
  const auto duration = static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
  for (uint32_t i = 0; i < sample->count; ++i) record_completion(sample->rank, sample->calls[i], duration);
}

void make_pairs(Pool* own_pool, const Driver& cuda, Context context) {
  if (cuda.set_context(context) != 0) return;
  uint32_t made = own_pool->made.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < kBatch && made < kSamples; ++i) {
    Sample* sample = &own_pool->samples[made];
    if (cuda.event_create(&sample->first, kEventDefault) != 0 || cuda.event_create(&sample->second, kEventDefault) != 0)
      return;
    sample->context = context;
    own_pool->state[made].store(kFree, std::memory_order_release);
    own_pool->made.store(++made, std::memory_order_release);
  }
}

void* help(void* argument) {
  auto* own_pool = static_cast<Pool*>(argument);
  const Driver& cuda = *driver();
  int mode = kThreadLocalCapture;
  bool healthy = cuda.exchange_capture_mode(&mode) == 0;
  uint32_t idle = 0;
  while (healthy) {
    const Context wanted = own_pool->wanted.exchange(nullptr, std::memory_order_acq_rel);
    if (wanted != nullptr) make_pairs(own_pool, cuda, wanted);
    const bool busy = wanted != nullptr || own_pool->taken.load(std::memory_order_acquire) != 0;
    idle = busy ? 0 : idle + 1;
    const uint32_t made = busy ? own_pool->made.load(std::memory_order_relaxed) : 0;
    for (uint32_t i = 0; i < made && healthy; ++i) {
      if (own_pool->state[i].load(std::memory_order_acquire) != kRunning) continue;
      Sample* sample = &own_pool->samples[i];
      const int answer = cuda.event_query(sample->second);
      if (answer == kNotReady) continue;
      if (answer == 0) complete(sample, cuda);
      free_sample(own_pool, i);
      healthy = answer == 0;  // anything else: the context is lost or CUDA is being taken down
    }
    nanosleep(&kPoll, nullptr);
    // Not at once: a call that follows soon would pay for waking it.
    if (idle > kIdlePolls) sleep_until_woken(own_pool);
  }
  own_pool->helper.store(2, std::memory_order_release);
  return nullptr;
}

uint32_t index_of(const Pool* own_pool, const Sample* sample) {
  return static_cast<uint32_t>(sample - own_pool->samples);
}

// A free sample of this context; null: there is none.
Sample* take(Pool* own_pool, uint32_t made, Context context) {
  const uint32_t from = own_pool->next.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t i = 0; i < made; ++i) {
    const uint32_t at = (from + i) % made;
    uint32_t state = kFree;
    if (own_pool->state[at].load(std::memory_order_relaxed) != kFree || own_pool->samples[at].context != context ||
        !own_pool->state[at].compare_exchange_strong(state, kTaken)) {
      continue;
    }
    own_pool->taken.fetch_add(1, std::memory_order_seq_cst);
    return &own_pool->samples[at];
  }
  return nullptr;
}

bool start_helper(Pool* own_pool) {
  uint32_t state = own_pool->helper.load(std::memory_order_acquire);
  if (state == 0 && own_pool->helper.compare_exchange_strong(state, 1)) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are not for us
    pthread_t thread;
    state = pthread_create(&thread, nullptr, help, own_pool) == 0 ? 1 : 2;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (state == 1) pthread_detach(thread);
    if (state == 2) own_pool->helper.store(2, std::memory_order_release);
  }
  return state == 1;
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
  uint64_t seen = call.counter->finished.load(std::memory_order_relaxed);
  while (seen < call.nth && !call.counter->finished.compare_exchange_weak(seen, call.nth)) {
  }
}

bool capturing(const void* stream) {
  const Driver* cuda = driver();
  int status = 0;
  return cuda != nullptr && cuda->stream_capturing(stream, &status) == 0 && status != 0;
}

Sample* begin_sample(Rank* rank, const void* stream) {
  const Driver* cuda = driver();
  int status = 0;
  // The default stream answers with an error while another stream captures: then it must not be touched.
  if (cuda == nullptr || cuda->stream_capturing(stream, &status) != 0 || status != 0) return nullptr;
  Pool* own_pool = pool();
  Context context = nullptr;
  if (own_pool == nullptr || cuda->context_current(&context) != 0 || context == nullptr || !start_helper(own_pool)) {
    return nullptr;
  }
  const uint32_t made = own_pool->made.load(std::memory_order_acquire);
  Sample* sample = own_pool->taken.load(std::memory_order_relaxed) < made ? take(own_pool, made, context) : nullptr;
  if (sample == nullptr) {
    if (made < kSamples) own_pool->wanted.store(context, std::memory_order_seq_cst);
  } else if (cuda->event_record(sample->first, stream) == 0) {
    sample->rank = rank;
  } else {
    free_sample(own_pool, index_of(own_pool, sample));
    sample = nullptr;
  }
  wake(own_pool);
  return sample;
}

void end_sample(Sample* sample, const void* stream, const Timed* calls, uint32_t count) {
  const Driver* cuda = driver();
  Pool* own_pool = pool();
  if (own_pool == nullptr) return;  // cannot be: it gave the sample
  sample->count = count < kTimedCalls ? count : kTimedCalls;
  memcpy(sample->calls, calls, sample->count * sizeof(Timed));
  const bool recorded = count > 0 && cuda != nullptr && cuda->event_record(sample->second, stream) == 0;
  if (recorded) own_pool->state[index_of(own_pool, sample)].store(kRunning, std::memory_order_release);
  if (!recorded) free_sample(own_pool, index_of(own_pool, sample));
}

}  // namespace falcon
