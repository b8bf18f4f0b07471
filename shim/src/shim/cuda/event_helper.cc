// The thread that asks which events the device has passed, for each stream only the oldest. It never waits for the
// device, sleeps while nothing is awaited, and is gone before CUDA's driver is taken down.
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cuda/event_pool.h"

namespace falcon {
namespace {

constexpr int kNotReady = 600;
constexpr int kThreadLocalCapture = 1;
constexpr unsigned int kEventDefault = 0;  // with timing
constexpr uint32_t kBatch = 64;            // pairs made at once
constexpr timespec kPoll{0, 500000};
constexpr uint32_t kIdlePolls = 20;    // with nothing to wait for, until the helper sleeps
constexpr uint32_t kMostFaults = 100;  // in a row, of one event: the context is lost, or CUDA is being taken down
constexpr int kExitPolls = 100;

void tell(Pool* pool, DeviceTimes state, NoDeviceTimes why) {
  RingHeader& header = pool->rank.load(std::memory_order_acquire)->ring().header();
  header.device_reason.store(why, std::memory_order_relaxed);
  header.device_times.store(state, std::memory_order_release);
}

void tell_fault(Pool* pool, int code) {
  RingHeader& header = pool->rank.load(std::memory_order_acquire)->ring().header();
  header.device_code.store(static_cast<uint32_t>(code), std::memory_order_relaxed);
  header.device_faults.fetch_add(1, std::memory_order_relaxed);
}

// A full barrier on both sides: either the helper sees what is new before it sleeps, or the call sees it asleep.
void sleep_until_woken(Pool* pool) {
  pool->asleep.store(1, std::memory_order_seq_cst);
  if (pool->taken.load(std::memory_order_seq_cst) == 0 && pool->wanted.load(std::memory_order_seq_cst) == nullptr &&
      pool->ending.load(std::memory_order_seq_cst) == 0) {
    syscall(SYS_futex, &pool->asleep, FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
  }
  pool->asleep.store(0, std::memory_order_relaxed);
}

void make_pairs(Pool* pool, const Driver& cuda, Context context) {
  int fault = cuda.set_context(context);
  for (uint32_t i = 0; i < kBatch && fault == 0 && !pool->full(); ++i) {
    Event first = nullptr;
    Event second = nullptr;
    fault = cuda.event_create(&first, kEventDefault);
    if (fault == 0) fault = cuda.event_create(&second, kEventDefault);
    if (fault == 0 && !pool->add(context, first, second)) return;
  }
  if (fault != 0) tell_fault(pool, fault);
}

void complete(Pool* pool, const Sample& sample, const Driver& cuda) {
  float milliseconds = 0;
  const int fault = cuda.event_elapsed(&milliseconds, sample.first, sample.second);
  if (fault != 0) {
    tell_fault(pool, fault);
    return;
  }
  const auto duration = static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
  for (uint32_t i = 0; i < sample.count; ++i) record_completion(sample.rank, sample.calls[i], duration);
}

// Takes what the device has passed from a stream's queue. False: the driver does not answer any more.
bool follow(Pool* pool, const Driver& cuda, uint32_t lane) {
  for (Sample* sample = pool->first_of(lane); sample != nullptr; sample = pool->first_of(lane)) {
    const int answer = cuda.event_query(sample->second);
    if (answer == kNotReady) return true;
    if (answer != 0) {
      tell_fault(pool, answer);
      return ++sample->faults < kMostFaults;  // asked again at the next poll
    }
    complete(pool, *sample, cuda);
    pool->pop(lane);
  }
  return true;
}

void* help(void* argument) {
  auto* pool = static_cast<Pool*>(argument);
  prctl(PR_SET_NAME, "falcon-events", 0, 0, 0);  // what `top -H` shows
  const Driver& cuda = *driver();
  int mode = kThreadLocalCapture;
  bool healthy = cuda.exchange_capture_mode(&mode) == 0;
  uint32_t idle = 0;
  while (healthy && pool->ending.load(std::memory_order_acquire) == 0) {
    const Context wanted = pool->wanted.exchange(nullptr, std::memory_order_acq_rel);
    if (wanted != nullptr) make_pairs(pool, cuda, wanted);
    const bool busy = wanted != nullptr || pool->taken.load(std::memory_order_acquire) != 0;
    idle = busy ? 0 : idle + 1;
    for (uint32_t lane = 0; busy && healthy && lane < Pool::kLanes; ++lane) healthy = follow(pool, cuda, lane);
    nanosleep(&kPoll, nullptr);
    // Not at once: a call that follows soon would pay for waking it.
    if (idle > kIdlePolls) sleep_until_woken(pool);
  }
  tell(pool, DeviceTimes::kOff, healthy ? NoDeviceTimes::kExit : NoDeviceTimes::kFaults);
  pool->helper.store(2, std::memory_order_release);
  return nullptr;
}

// At exit: CUDA's own handlers, registered before, come after this.
void end_helper(void* /*nothing*/) {
  Pool* pool = Pool::own();
  if (pool == nullptr) return;  // cannot be: its helper runs
  pool->ending.store(1, std::memory_order_seq_cst);
  wake_helper(pool);
  for (int i = 0; i < kExitPolls && pool->helper.load(std::memory_order_acquire) == 1; ++i) nanosleep(&kPoll, nullptr);
}

// By its name, since a link to it would be what only some C libraries have.
void end_at_exit() {
  using Register = int (*)(void (*)(void*), void*, void*);
  const auto at_exit = reinterpret_cast<Register>(dlsym(RTLD_DEFAULT, "__cxa_atexit"));
  if (at_exit != nullptr) at_exit(end_helper, nullptr, nullptr);
}

bool start(Pool* pool) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are not for us
  pthread_t thread;
  const bool started = pthread_create(&thread, nullptr, help, pool) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started) pthread_detach(thread);
  return started;
}

}  // namespace

bool start_helper(Pool* pool, Rank* rank) {
  uint32_t state = pool->helper.load(std::memory_order_acquire);
  if (state == 0 && pool->helper.compare_exchange_strong(state, 1)) {
    pool->rank.store(rank, std::memory_order_release);
    tell(pool, DeviceTimes::kOn, NoDeviceTimes::kNone);
    end_at_exit();
    state = start(pool) ? 1 : 2;
    if (state == 2) {
      tell(pool, DeviceTimes::kOff, NoDeviceTimes::kNoThread);
      pool->helper.store(2, std::memory_order_release);
    }
  }
  return state == 1;
}

void wake_helper(Pool* pool) {
  if (pool->asleep.load(std::memory_order_seq_cst) == 0 || pool->asleep.exchange(0) == 0) return;
  const int error = errno;
  syscall(SYS_futex, &pool->asleep, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  errno = error;
}

}  // namespace falcon
