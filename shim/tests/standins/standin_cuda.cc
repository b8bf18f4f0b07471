// The part of CUDA's driver and runtime that the shim calls, without a device.
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "standins/standin_nccl.h"

extern "C" {

void* standin_capturing = nullptr;
bool standin_device_done = false;
float standin_elapsed_ms = 0;
int standin_unsafe_calls = 0;
int standin_events_recorded = 0;
void* standin_recorded_on = nullptr;
int standin_queries = 0;
int standin_faults = 0;

}  // extern "C"

namespace {

thread_local int t_capture_mode = 0;  // global
int g_context = 0;
std::atomic<uint64_t> g_events{0};
char g_places[4096];  // an event is an address
constexpr int kNotReady = 600;
constexpr int kIllegalAddress = 700;
constexpr int kImplicitCapture = 906;

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
extern "C" {

int cuEventCreate(void** event, unsigned int /*flags*/) {
  if (t_capture_mode == 0) __atomic_fetch_add(&standin_unsafe_calls, 1, __ATOMIC_RELAXED);
  *event = &g_places[g_events.fetch_add(1) % sizeof(g_places)];
  return 0;
}
int cuEventRecord(void* /*event*/, void* stream) {
  __atomic_fetch_add(&standin_events_recorded, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&standin_recorded_on, stream, __ATOMIC_RELAXED);
  return 0;
}
int cuEventQuery(void* /*event*/) {
  __atomic_fetch_add(&standin_queries, 1, __ATOMIC_RELAXED);
  if (__atomic_load_n(&standin_faults, __ATOMIC_RELAXED) > 0) {
    __atomic_fetch_sub(&standin_faults, 1, __ATOMIC_RELAXED);
    return kIllegalAddress;
  }
  return __atomic_load_n(&standin_device_done, __ATOMIC_ACQUIRE) ? 0 : kNotReady;
}
int cuEventElapsedTime(float* milliseconds, void* /*first*/, void* /*second*/) {
  *milliseconds = standin_elapsed_ms;
  return 0;
}
int cuStreamIsCapturing(void* stream, int* status) {
  if (stream == nullptr && standin_capturing != nullptr) return kImplicitCapture;
  *status = stream != nullptr && stream == standin_capturing ? 1 : 0;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  const int before = t_capture_mode;
  t_capture_mode = *mode;
  *mode = before;
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = &g_context;
  return 0;
}
int cuCtxSetCurrent(void* context) { return context == &g_context ? 0 : 1; }
void standin_watch_exit() {
  atexit([] {
    const int before = __atomic_load_n(&standin_queries, __ATOMIC_RELAXED);
    usleep(50000);
    if (__atomic_load_n(&standin_queries, __ATOMIC_RELAXED) != before) _exit(99);
  });
}
int cudaGraphLaunch(void* /*graph*/, void* /*stream*/) { return standin_result; }
}
// NOLINTEND(readability-identifier-naming)
