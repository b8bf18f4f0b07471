// A hook of another tool, preloaded in front of the shim by tests/integration/shim: it counts the all-reduces of a
// process, hands each to the next library, which is the shim, and prints their number after the second.
// Never shipped.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

using Allreduce = void (*)(const void*);
constexpr const char* kAllreduce = "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE";

constexpr uint32_t kPrinted = 2;
std::atomic<uint32_t> g_calls{0};

Allreduce next_allreduce() {
  void* found = dlsym(RTLD_NEXT, kAllreduce);
  if (found == nullptr) {
    fprintf(stderr, "passing_gloo: no library behind this one has %s\n", kAllreduce);
    abort();
  }
  return reinterpret_cast<Allreduce>(found);
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): Gloo's name
extern "C" __attribute__((visibility("default"))) void _ZN4gloo9allreduceERKNS_16AllreduceOptionsE(
    const void* options) {
  static const Allreduce next = next_allreduce();
  next(options);
  if (++g_calls == kPrinted) fprintf(stderr, "passing_gloo: %u all-reduces\n", kPrinted);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
