#include "cuda/driver.h"

#include <dlfcn.h>

#include <atomic>

namespace falcon {
namespace {

enum State : uint32_t { kNew = 0, kLooking = 1, kThere = 2, kAbsent = 3, kOld = 4 };
std::atomic<uint32_t> g_state{kNew};
Driver g_driver;

template <typename Function>
bool load(void* library, const char* name, Function* function) {
  *reinterpret_cast<void**>(function) = dlsym(library, name);
  return *function != nullptr;
}

State look() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);  // the reference keeps it
  if (library == nullptr) return kAbsent;
  const bool complete = load(library, "cuEventCreate", &g_driver.event_create) &&
                        load(library, "cuEventRecord", &g_driver.event_record) &&
                        load(library, "cuEventQuery", &g_driver.event_query) &&
                        load(library, "cuEventElapsedTime", &g_driver.event_elapsed) &&
                        load(library, "cuStreamIsCapturing", &g_driver.stream_capturing) &&
                        load(library, "cuThreadExchangeStreamCaptureMode", &g_driver.exchange_capture_mode) &&
                        load(library, "cuCtxGetCurrent", &g_driver.context_current) &&
                        load(library, "cuCtxSetCurrent", &g_driver.set_context);
  return complete ? kThere : kOld;
}

}  // namespace

const Driver* driver(NoDeviceTimes* why) {
  uint32_t state = g_state.load(std::memory_order_acquire);
  if (state == kNew && g_state.compare_exchange_strong(state, kLooking)) {
    state = look();
    g_state.store(state, std::memory_order_release);
  }
  if (why != nullptr && state == kAbsent) *why = NoDeviceTimes::kNoDriver;
  if (why != nullptr && state == kOld) *why = NoDeviceTimes::kOldDriver;
  return state == kThere ? &g_driver : nullptr;
}

}  // namespace falcon
