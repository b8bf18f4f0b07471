// Gloo's collectives, interposed: `gloo::allreduce(AllreduceOptions const&)` and its siblings are PLT calls inside
// libtorch_cpu.so (Debian: of libgloo.so.0), and they block until done, so start and end are both seen.
//
// An error that Gloo throws passes through (flight.cc); the call that failed leaves a record that says so.

#include <errno.h>

#include <atomic>

#include "common/symbols.h"
#include "gloo/flight.h"
#include "gloo/options.h"
#include "gloo/verification.h"
#include "rank/rank.h"

namespace falcon {
namespace {

Collective original(std::atomic<Collective>& cached, const char* symbol) {
  Collective found = cached.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  const int error = errno;
  found = reinterpret_cast<Collective>(resolve_original(symbol));
  errno = error;
  if (found == nullptr) missing_original();
  cached.store(found, std::memory_order_release);
  return found;
}

// The group of a collective; where point-to-point calls came first, the group that they introduced.
Communicator* group(Rank* rank, const GlooCall& about) {
  if (about.context == nullptr) return nullptr;
  Communicator* known = rank->find(about.context);
  for (uint32_t index = 0; known == nullptr && rank->at(index) != nullptr; ++index) {
    Communicator* other = rank->at(index);
    const void* transport = other->transport.load(std::memory_order_acquire);
    const void* handle = transport;
    if (transport == nullptr || !holds_transport(about.context, transport)) continue;
    if (other->handle.compare_exchange_strong(handle, about.context, std::memory_order_acq_rel)) known = other;
  }
  return rank->introduce(about.context, about.rank, about.size, 0);
}

void forward(Collective call, Op op, Options kind, void* options) {
  const int error = errno;
  Rank* rank = Rank::current();
  if (rank == nullptr) {
    errno = error;
    call(options);
    return;
  }
  if (!in_flight()) rank->pass_gate();
  const GlooCall about = read_options(kind, options);
  Record record{};
  record.op = op;
  record.kind = Kind::kBlocking;
  record.bytes = about.bytes;
  record.peer_or_root = about.root;
  Communicator* communicator = group(rank, about);
  const Membership member = rank->join(communicator);
  record.comm = member.id;
  record.comm_seq = member.call;
  errno = error;
  fly(call, options, record, rank->recording() ? &rank->ring() : nullptr, member.counted.counter);
  if (kind == Options::kAllReduce && !in_flight()) verify_result(rank, communicator, about, options, member.call);
}

}  // namespace
}  // namespace falcon

// NOLINTBEGIN(bugprone-*,readability-identifier-naming): these are the mangled names of the functions that we stand in
// for
#define FALCON_GLOO(symbol, op, kind)                                                                   \
  extern "C" __attribute__((visibility("default"))) void symbol(void* options) {                        \
    static std::atomic<falcon::Collective> cached{nullptr};                                             \
    falcon::forward(falcon::original(cached, #symbol), falcon::Op::op, falcon::Options::kind, options); \
  }

FALCON_GLOO(_ZN4gloo9allreduceERKNS_16AllreduceOptionsE, kAllReduce, kAllReduce)
FALCON_GLOO(_ZN4gloo9allgatherERNS_16AllgatherOptionsE, kAllGather, kAllGather)
FALCON_GLOO(_ZN4gloo10allgathervERNS_17AllgathervOptionsE, kAllGather, kAllGatherV)
FALCON_GLOO(_ZN4gloo6reduceERNS_13ReduceOptionsE, kReduce, kReduce)
FALCON_GLOO(_ZN4gloo9broadcastERNS_16BroadcastOptionsE, kBroadcast, kBroadcast)
FALCON_GLOO(_ZN4gloo7barrierERNS_14BarrierOptionsE, kBarrier, kBarrier)
FALCON_GLOO(_ZN4gloo8alltoallERNS_15AlltoallOptionsE, kAllToAll, kAllToAll)
FALCON_GLOO(_ZN4gloo9alltoallvERNS_16AlltoallvOptionsE, kAllToAll, kAllToAllV)
FALCON_GLOO(_ZN4gloo6gatherERNS_13GatherOptionsE, kGather, kGather)
FALCON_GLOO(_ZN4gloo7gathervERNS_14GathervOptionsE, kGather, kGatherV)
FALCON_GLOO(_ZN4gloo7scatterERNS_14ScatterOptionsE, kScatter, kScatter)
// NOLINTEND(bugprone-*,readability-identifier-naming)
