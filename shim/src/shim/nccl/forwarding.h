// Forwards hooked calls to the loaded library, and holds what a thread remembers between its calls.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "common/symbols.h"
#include "cuda/device.h"
#include "nccl/api.h"
#include "nccl/creation.h"

namespace falcon::nccl {

// A communicator whose handle is written when the group ends.
struct Pending {
  Comm* handle;
  int32_t rank;  // -1: not known
  int32_t size;
  uint32_t parent;  // its id
  Comm told_by;     // says when it is made, if the call returns before; null: itself
  uint32_t others;  // that the call makes besides
  Making making;    // the call
};

constexpr uint32_t kOthers = 2;  // ranks that a pipeline's stage talks to

// The sends and receives of a group in one communicator.
struct Exchange {
  Communicator* communicator;
  const void* stream;  // of the first
  uint64_t start_ns;
  uint64_t bytes;  // of all
  uint32_t sends;
  uint32_t receives;
  int32_t others[kOthers];  // peers, as long as there are no more
  uint32_t others_met;      // at most one more than these
  uint8_t dtype;
  bool captured;
  bool whole;  // it is one record
};

struct GroupCall {
  const void* stream;
  Timed timed;
  const Exchange* exchange;  // that a send or receive is a part of
};

constexpr uint32_t kPending = 32;
constexpr uint32_t kExchanges = 8;  // communicators of one group

// What a thread keeps of its group until the group ends.
struct Room {
  std::atomic<bool> taken;
  Pending pending[kPending];
  GroupCall call[kTimedCalls];
  Exchange exchange[kExchanges];
};

struct Thread {
  uint32_t depth;  // of groups
  uint32_t group;  // number of the outermost group
  bool inside;     // NCCL itself is calling
  bool sample;     // a call of this group is to be timed
  uint32_t pendings;
  uint32_t calls;
  uint32_t exchanges;
  Room* room;  // null outside of groups, and where too many threads have one
};

// The fast model of thread-local storage takes its bytes from a small reserve where the library is loaded late, as
// NCCL's plugin alone: PyTorch's libraries leave less than 2 KiB of it. So the arrays lie elsewhere (Room).
__attribute__((tls_model("initial-exec"))) inline thread_local Thread t_thread{};

// The function of the loaded library that the hook of this name stands in for; null where it has none.
template <typename Function>
Function real(std::atomic<void*>& cache, const char* symbol) {
  void* found = cache.load(std::memory_order_acquire);
  if (found == nullptr) {
    const int error = errno;
    found = resolve_nccl(symbol);
    errno = error;
    cache.store(found, std::memory_order_release);
  }
  return reinterpret_cast<Function>(found);
}

// What NCCL does in here is not the program's doing.
template <typename Call>
Result inside(Call call) {
  t_thread.inside = true;
  const Result result = call();
  t_thread.inside = false;
  return result;
}

}  // namespace falcon::nccl

#define FALCON_HOOK extern "C" __attribute__((visibility("default"))) Result
// The library's function that the hook stands in for, as `real`; leaves if there is none.
// NOLINTBEGIN(bugprone-macro-parentheses): the address of an overloadless function
#define FALCON_REAL(name)                                              \
  static std::atomic<void*> cache{nullptr};                            \
  const auto real = falcon::nccl::real<decltype(&name)>(cache, #name); \
  if (real == nullptr) return falcon::nccl::kInvalidUsage
// NOLINTEND(bugprone-macro-parentheses)
