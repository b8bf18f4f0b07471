// Gloo's collectives, interposed: `gloo::allreduce(AllreduceOptions const&)` and its siblings are PLT calls inside
// libtorch_cpu.so (Debian: of libgloo.so.0), and they block until done, so start and end are both seen.
//
// The code is built without exceptions but with unwind tables: an error that Gloo throws passes through our frame as
// through any C function, and the call that failed leaves no record.

#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#include "gloo_options.h"
#include "rank.h"
#include "resolve.h"

namespace falcon {
namespace {

using Collective = void (*)(void*);

Collective original(std::atomic<Collective>& cached, const char* symbol, const void* ours) {
  Collective found = cached.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  found = reinterpret_cast<Collective>(resolve_original(symbol, ours));
  if (found == nullptr) {
    // The caller is linked against it, so this cannot be; without the original nothing could be forwarded.
    constexpr char kMessage[] = "falcon: the library that this program calls for a Gloo collective is not loaded\n";
    (void)!write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
    abort();
  }
  cached.store(found, std::memory_order_release);
  return found;
}

void forward(Collective call, Op op, void* options) {
  Rank* rank = Rank::current();
  if (rank == nullptr) {
    call(options);
    return;
  }
  const GlooCall about = read_options(op, options);
  Communicator* communicator = rank->communicator(about.context, about.rank, about.size);
  Record record{};
  record.op = op;
  record.kind = Kind::kBlocking;
  record.bytes = about.bytes;
  record.peer_or_root = about.root;
  if (communicator != nullptr) {
    record.comm = communicator->id;
    record.comm_seq = communicator->calls.fetch_add(1, std::memory_order_relaxed);
  }
  record.t_start_ns = monotonic_ns();
  call(options);
  record.duration_ns = monotonic_ns() - record.t_start_ns;
  rank->ring().append(record);
}

}  // namespace
}  // namespace falcon

// NOLINTBEGIN(bugprone-*,readability-identifier-naming): these are the mangled names of the functions that we stand in
// for
#define FALCON_GLOO(symbol, op)                                                                              \
  extern "C" __attribute__((visibility("default"))) void symbol(void* options) {                             \
    static std::atomic<falcon::Collective> cached{nullptr};                                                  \
    falcon::forward(falcon::original(cached, #symbol, reinterpret_cast<const void*>(&symbol)), op, options); \
  }

FALCON_GLOO(_ZN4gloo9allreduceERKNS_16AllreduceOptionsE, falcon::Op::kAllReduce)
FALCON_GLOO(_ZN4gloo9allgatherERNS_16AllgatherOptionsE, falcon::Op::kAllGather)
FALCON_GLOO(_ZN4gloo10allgathervERNS_17AllgathervOptionsE, falcon::Op::kAllGather)
FALCON_GLOO(_ZN4gloo6reduceERNS_13ReduceOptionsE, falcon::Op::kReduce)
FALCON_GLOO(_ZN4gloo9broadcastERNS_16BroadcastOptionsE, falcon::Op::kBroadcast)
FALCON_GLOO(_ZN4gloo7barrierERNS_14BarrierOptionsE, falcon::Op::kBarrier)
FALCON_GLOO(_ZN4gloo8alltoallERNS_15AlltoallOptionsE, falcon::Op::kAllToAll)
FALCON_GLOO(_ZN4gloo9alltoallvERNS_16AlltoallvOptionsE, falcon::Op::kAllToAll)
FALCON_GLOO(_ZN4gloo6gatherERNS_13GatherOptionsE, falcon::Op::kGather)
FALCON_GLOO(_ZN4gloo7scatterERNS_14ScatterOptionsE, falcon::Op::kScatter)
// NOLINTEND(bugprone-*,readability-identifier-naming)
