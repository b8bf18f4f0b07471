// Spoils the result of an all-reduce within Gloo's own call: preloaded behind the shim by tests/integration/shim, it
// flips a bit of what Gloo has just received, as a broken memory or network card would. Never shipped.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

// The begin of gloo::transport::UnboundBuffer.
struct Buffer {
  const void* vtable;
  unsigned char* data;
  size_t bytes;
};

std::atomic<size_t> g_bytes{0};     // of the buffer to spoil; 0: none
std::atomic<size_t> g_offset{0};    // of the byte in it
std::atomic<int> g_receives{0};     // that are still to end before
std::atomic<uint32_t> g_spoilt{0};  // bits flipped so far

using Wait = bool (*)(void*, int*, long);
constexpr const char* kWait =
    "_ZN4gloo9transport3tcp13UnboundBuffer8waitRecvEPiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEE";

// PyTorch's own, which Python has loaded for itself alone.
Wait real_wait() {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void* found = library == nullptr ? nullptr : dlsym(library, kWait);
  if (found == nullptr) {
    fprintf(stderr, "corrupting_gloo: PyTorch has no %s\n", kWait);
    abort();
  }
  return reinterpret_cast<Wait>(found);
}

}  // namespace

// Once `receives` receives into a buffer of so many bytes have ended, flips a bit of the byte at `offset`.
extern "C" __attribute__((visibility("default"))) void corrupt_result(size_t bytes, int receives, size_t offset) {
  g_offset = offset;
  g_receives = receives;
  g_bytes = bytes;
}

extern "C" __attribute__((visibility("default"))) uint32_t corrupted_results() { return g_spoilt; }

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): Gloo's name
extern "C" __attribute__((visibility("default"))) bool
_ZN4gloo9transport3tcp13UnboundBuffer8waitRecvEPiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEE(void* self, int* peer,
                                                                                              long timeout) {
  static const Wait next = real_wait();
  const bool done = next(self, peer, timeout);
  const auto* buffer = static_cast<const Buffer*>(self);
  if (done && g_bytes != 0 && buffer->bytes == g_bytes && --g_receives == 0) {
    g_bytes = 0;
    buffer->data[g_offset] ^= 0x10U;
    ++g_spoilt;
  }
  return done;
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
