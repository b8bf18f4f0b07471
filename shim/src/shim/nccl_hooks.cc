// NCCL's public calls, interposed. A call returns when it is enqueued: its record says when, and device.cc measures
// when the device ran it. Whatever NCCL calls in turn (an all-to-all made of sends and receives) is a part of that
// call.
//
// A symbol that the loaded library lacks cannot be hidden from dlsym(RTLD_DEFAULT), which finds ours; calling it
// answers ncclInvalidUsage and does nothing. A dlsym on the library's own handle never finds ours.

#include "nccl_hooks.h"

#include <dlfcn.h>
#include <errno.h>

#include "device.h"
#include "nccl_api.h"
#include "rank.h"
#include "resolve.h"

namespace falcon::nccl {
namespace {

// A communicator whose handle is written when the group ends.
struct Pending {
  Comm* handle;
  int32_t rank;  // -1: not known
  int32_t size;
  uint32_t parent;
};

struct GroupCall {
  const void* stream;
  Timed timed;
};

constexpr uint32_t kPending = 32;
constexpr uint32_t kStreamsOfGroup = 8;

struct Thread {
  uint32_t depth;  // of groups
  uint32_t group;  // number of the outermost one
  bool inside;     // NCCL itself is calling
  bool sample;     // a call of this group is to be timed
  uint32_t pendings;
  uint32_t calls;
  Pending pending[kPending];
  GroupCall call[kTimedCalls];
};

// The library is loaded at the program's start, so that the fast model of thread-local storage holds.
__attribute__((tls_model("initial-exec"))) thread_local Thread t_thread{};

constexpr uint32_t kReached = 8;
std::atomic<const void*> g_reached[kReached];  // loaded objects that hooks forward to, by their address

void reach(const void* function) {
  Dl_info where{};
  if (function == nullptr || dladdr(function, &where) == 0) return;
  for (std::atomic<const void*>& place : g_reached) {
    const void* there = nullptr;
    if (place.compare_exchange_strong(there, where.dli_fbase) || there == where.dli_fbase) return;
  }
}

template <typename Function>
Function real(std::atomic<void*>& cache, const char* symbol, Function ours) {
  void* found = cache.load(std::memory_order_acquire);
  if (found == nullptr) {
    const int error = errno;
    found = resolve_nccl(symbol, reinterpret_cast<const void*>(ours));
    reach(found);
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

}  // namespace

bool hooks_reach(const void* address) {
  Dl_info where{};
  if (address == nullptr || dladdr(address, &where) == 0) return false;
  for (const std::atomic<const void*>& place : g_reached) {
    if (place.load(std::memory_order_acquire) == where.dli_fbase) return true;
  }
  return false;
}

}  // namespace falcon::nccl

using falcon::Communicator;
using falcon::Op;
using falcon::Rank;
using falcon::Traffic;
using falcon::nccl::Comm;
using falcon::nccl::Config;
using falcon::nccl::Result;
using falcon::nccl::Stream;
using falcon::nccl::UniqueId;

#define FALCON_HOOK extern "C" __attribute__((visibility("default"))) Result
// The function that this one stands in for, as `real`; leaves if there is none.
// NOLINTBEGIN(bugprone-macro-parentheses): the address of an overloadless function
#define FALCON_REAL(name)                                    \
  static std::atomic<void*> cache{nullptr};                  \
  const auto real = falcon::nccl::real(cache, #name, &name); \
  if (real == nullptr) return falcon::nccl::kInvalidUsage
// NOLINTEND(bugprone-macro-parentheses)

namespace falcon::nccl {
namespace {

// Asks the library for rank and size. Refused by a communicator that is not ready: asked again at its next call.
void complete(Rank* rank, Communicator* communicator, Comm comm) {
  using Ask = Result (*)(Comm, int*);
  static std::atomic<void*> cache_rank{nullptr};
  static std::atomic<void*> cache_size{nullptr};
  const auto ask_rank = real<Ask>(cache_rank, "ncclCommUserRank", nullptr);
  const auto ask_size = real<Ask>(cache_size, "ncclCommCount", nullptr);
  int mine = -1;
  int size = 0;
  const bool known = ask_rank != nullptr && ask_size != nullptr && ask_rank(comm, &mine) == kSuccess &&
                     ask_size(comm, &size) == kSuccess;
  if (known && mine >= 0 && mine < size) rank->describe(communicator, mine, size);
}

Communicator* meet(Rank* rank, Comm comm) {
  Communicator* communicator = rank->find(comm);
  if (communicator == nullptr) communicator = rank->introduce(comm, -1, 0, 0);
  if (communicator != nullptr && communicator->shape.load(std::memory_order_acquire) == 0) {
    complete(rank, communicator, comm);
  }
  return communicator;
}

void add(const Pending& made) {
  Rank* rank = Rank::current();
  if (rank == nullptr || *made.handle == nullptr) return;  // a split without a colour makes none
  Communicator* stale = rank->find(*made.handle);
  if (stale != nullptr) rank->retire(stale);  // destroyed by a call that we did not see
  Communicator* communicator = rank->introduce(*made.handle, made.rank, made.size, made.parent);
  if (communicator != nullptr && made.rank < 0) complete(rank, communicator, *made.handle);
}

// A call that makes a communicator.
template <typename Call>
Result create(Pending made, Call call) {
  Thread& thread = t_thread;
  if (thread.inside) return call();
  const int error = errno;
  Rank* rank = Rank::existing();
  if (rank != nullptr && thread.depth == 0) rank->pass_gate();
  errno = error;
  const Result result = inside(call);
  const int after = errno;
  if (accepted(result)) {
    if (thread.depth == 0) {
      add(made);
    } else if (thread.pendings < kPending) {
      thread.pending[thread.pendings++] = made;
    }
  }
  errno = after;
  return result;
}

uint32_t id_of(Comm comm) {
  Rank* rank = Rank::existing();
  return rank == nullptr ? 0 : static_cast<uint32_t>(rank->id_of(rank->find(comm)));
}

struct About {
  Op op;
  uint64_t elements;
  bool each;  // `elements` go to each rank of the communicator
  int type;
  int32_t peer;
  Comm comm;
  Stream stream;
};

Timed describe(Rank* rank, const About& about) {
  Communicator* communicator = meet(rank, about.comm);
  Membership member{};
  if (about.op == Op::kSend || about.op == Op::kRecv) {
    member = rank->join(communicator, about.op == Op::kSend ? Traffic::kSend : Traffic::kRecv, about.peer);
  } else {
    member = rank->join(communicator);
  }
  const Element type = element(about.type);
  Record record{};
  record.t_start_ns = monotonic_ns();
  record.comm = member.id;
  record.comm_seq = member.call;
  record.bytes = about.elements * type.bytes;
  if (about.each && communicator != nullptr) record.bytes *= communicator->shape.load(std::memory_order_relaxed) >> 32U;
  record.group = t_thread.depth == 0 ? 0 : t_thread.group;
  record.peer_or_root = about.peer;
  record.stream = rank->stream(about.stream);
  record.op = about.op;
  record.dtype = type.wire;
  record.kind = Kind::kEnqueued;
  if (capturing(about.stream)) record.flags = kCaptured;
  return {record, member.counter, member.nth};
}

template <typename Call>
Result enqueue(const About& about, Call call) {
  Thread& thread = t_thread;
  if (thread.inside || about.comm == nullptr) return call();
  const int error = errno;
  Rank* rank = Rank::current();  // a rank by now, unless its communicator came past us
  if (rank == nullptr) {
    errno = error;
    return call();
  }
  if (thread.depth == 0) rank->pass_gate();
  Timed timed = describe(rank, about);
  const bool wanted = rank->sampled() && timed.record.flags == 0;
  Sample* sample = wanted && thread.depth == 0 ? begin_sample(rank, about.stream) : nullptr;
  errno = error;
  const Result result = inside(call);
  const int after = errno;
  if (!accepted(result)) timed.record.flags |= kFailed;
  if (rank->recording()) rank->ring().append(timed.record);
  if (sample != nullptr) end_sample(sample, about.stream, &timed, accepted(result) ? 1 : 0);
  if (thread.depth > 0 && accepted(result)) {
    thread.sample = thread.sample || wanted;
    if (thread.calls < kTimedCalls) thread.call[thread.calls++] = {about.stream, timed};
  }
  errno = after;
  return result;
}

// One pair of events per stream around the end of the outermost group: that is what starts its calls.
template <typename Call>
Result end_group(Call call) {
  Thread& thread = t_thread;
  Rank* rank = thread.sample ? Rank::current() : nullptr;
  const void* streams[kStreamsOfGroup];
  Sample* samples[kStreamsOfGroup];
  uint32_t count = 0;
  for (uint32_t i = 0; rank != nullptr && i < thread.calls; ++i) {
    uint32_t known = 0;
    while (known < count && streams[known] != thread.call[i].stream) ++known;
    if (known < count || count == kStreamsOfGroup) continue;
    streams[count] = thread.call[i].stream;
    samples[count] = begin_sample(rank, streams[count]);
    ++count;
  }
  const Result result = inside(call);
  for (uint32_t i = 0; i < count; ++i) {
    if (samples[i] == nullptr) continue;
    Timed timed[kTimedCalls];
    uint32_t of_stream = 0;
    for (uint32_t j = 0; accepted(result) && j < thread.calls; ++j) {
      if (thread.call[j].stream == streams[i]) timed[of_stream++] = thread.call[j].timed;
    }
    end_sample(samples[i], streams[i], timed, of_stream);
  }
  return result;
}

}  // namespace
}  // namespace falcon::nccl

using falcon::nccl::create;
using falcon::nccl::enqueue;
using falcon::nccl::inside;
using falcon::nccl::t_thread;

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
FALCON_HOOK ncclAllReduce(const void* send, void* recv, size_t count, int type, int reduction, Comm comm,
                          Stream stream) {
  FALCON_REAL(ncclAllReduce);
  return enqueue({Op::kAllReduce, count, false, type, -1, comm, stream},
                 [&] { return real(send, recv, count, type, reduction, comm, stream); });
}

FALCON_HOOK ncclReduce(const void* send, void* recv, size_t count, int type, int reduction, int root, Comm comm,
                       Stream stream) {
  FALCON_REAL(ncclReduce);
  return enqueue({Op::kReduce, count, false, type, root, comm, stream},
                 [&] { return real(send, recv, count, type, reduction, root, comm, stream); });
}

FALCON_HOOK ncclBroadcast(const void* send, void* recv, size_t count, int type, int root, Comm comm, Stream stream) {
  FALCON_REAL(ncclBroadcast);
  return enqueue({Op::kBroadcast, count, false, type, root, comm, stream},
                 [&] { return real(send, recv, count, type, root, comm, stream); });
}

FALCON_HOOK ncclBcast(void* buffer, size_t count, int type, int root, Comm comm, Stream stream) {
  FALCON_REAL(ncclBcast);
  return enqueue({Op::kBroadcast, count, false, type, root, comm, stream},
                 [&] { return real(buffer, count, type, root, comm, stream); });
}

FALCON_HOOK ncclAllGather(const void* send, void* recv, size_t count, int type, Comm comm, Stream stream) {
  FALCON_REAL(ncclAllGather);
  return enqueue({Op::kAllGather, count, false, type, -1, comm, stream},
                 [&] { return real(send, recv, count, type, comm, stream); });
}

FALCON_HOOK ncclReduceScatter(const void* send, void* recv, size_t count, int type, int reduction, Comm comm,
                              Stream stream) {
  FALCON_REAL(ncclReduceScatter);
  return enqueue({Op::kReduceScatter, count, false, type, -1, comm, stream},
                 [&] { return real(send, recv, count, type, reduction, comm, stream); });
}

FALCON_HOOK ncclAlltoAll(const void* send, void* recv, size_t count, int type, Comm comm, Stream stream) {
  FALCON_REAL(ncclAlltoAll);
  return enqueue({Op::kAllToAll, count, true, type, -1, comm, stream},
                 [&] { return real(send, recv, count, type, comm, stream); });
}

// RCCL's spelling.
FALCON_HOOK ncclAllToAll(const void* send, void* recv, size_t count, int type, Comm comm, Stream stream) {
  FALCON_REAL(ncclAllToAll);
  return enqueue({Op::kAllToAll, count, true, type, -1, comm, stream},
                 [&] { return real(send, recv, count, type, comm, stream); });
}

FALCON_HOOK ncclGather(const void* send, void* recv, size_t count, int type, int root, Comm comm, Stream stream) {
  FALCON_REAL(ncclGather);
  return enqueue({Op::kGather, count, false, type, root, comm, stream},
                 [&] { return real(send, recv, count, type, root, comm, stream); });
}

FALCON_HOOK ncclScatter(const void* send, void* recv, size_t count, int type, int root, Comm comm, Stream stream) {
  FALCON_REAL(ncclScatter);
  return enqueue({Op::kScatter, count, false, type, root, comm, stream},
                 [&] { return real(send, recv, count, type, root, comm, stream); });
}

FALCON_HOOK ncclSend(const void* send, size_t count, int type, int peer, Comm comm, Stream stream) {
  FALCON_REAL(ncclSend);
  return enqueue({Op::kSend, count, false, type, peer, comm, stream},
                 [&] { return real(send, count, type, peer, comm, stream); });
}

FALCON_HOOK ncclRecv(void* recv, size_t count, int type, int peer, Comm comm, Stream stream) {
  FALCON_REAL(ncclRecv);
  return enqueue({Op::kRecv, count, false, type, peer, comm, stream},
                 [&] { return real(recv, count, type, peer, comm, stream); });
}

FALCON_HOOK ncclCommInitRank(Comm* comm, int size, UniqueId id, int rank) {
  FALCON_REAL(ncclCommInitRank);
  return create({comm, rank, size, 0}, [&] { return real(comm, size, id, rank); });
}

FALCON_HOOK ncclCommInitRankConfig(Comm* comm, int size, UniqueId id, int rank, Config* config) {
  FALCON_REAL(ncclCommInitRankConfig);
  return create({comm, rank, size, 0}, [&] { return real(comm, size, id, rank, config); });
}

FALCON_HOOK ncclCommInitRankScalable(Comm* comm, int size, int rank, int ids, UniqueId* id, Config* config) {
  FALCON_REAL(ncclCommInitRankScalable);
  return create({comm, rank, size, 0}, [&] { return real(comm, size, rank, ids, id, config); });
}

// One process, several devices: each is a communicator of its own.
FALCON_HOOK ncclCommInitAll(Comm* comms, int devices, const int* list) {
  FALCON_REAL(ncclCommInitAll);
  const Result result = create({comms, 0, devices, 0}, [&] { return real(comms, devices, list); });
  for (int device = 1; falcon::nccl::accepted(result) && device < devices && t_thread.depth == 0; ++device) {
    falcon::nccl::add({&comms[device], device, devices, 0});
  }
  return result;
}

FALCON_HOOK ncclCommSplit(Comm comm, int color, int key, Comm* made, Config* config) {
  FALCON_REAL(ncclCommSplit);
  return create({made, -1, 0, falcon::nccl::id_of(comm)}, [&] { return real(comm, color, key, made, config); });
}

FALCON_HOOK ncclCommShrink(Comm comm, int* excluded, int count, Comm* made, Config* config, int flags) {
  FALCON_REAL(ncclCommShrink);
  return create({made, -1, 0, falcon::nccl::id_of(comm)},
                [&] { return real(comm, excluded, count, made, config, flags); });
}

FALCON_HOOK ncclCommGrow(Comm comm, int size, const UniqueId* id, int rank, Comm* made, Config* config) {
  FALCON_REAL(ncclCommGrow);
  return create({made, -1, 0, falcon::nccl::id_of(comm)}, [&] { return real(comm, size, id, rank, made, config); });
}

FALCON_HOOK ncclCommFinalize(Comm comm) {
  FALCON_REAL(ncclCommFinalize);
  return inside([&] { return real(comm); });
}

// Both end a communicator; its address may be another's before the call returns.
FALCON_HOOK ncclCommDestroy(Comm comm) {
  FALCON_REAL(ncclCommDestroy);
  Rank* rank = Rank::existing();
  if (rank != nullptr && !t_thread.inside) rank->retire(rank->find(comm));
  return inside([&] { return real(comm); });
}

FALCON_HOOK ncclCommAbort(Comm comm) {
  FALCON_REAL(ncclCommAbort);
  Rank* rank = Rank::existing();
  if (rank != nullptr && !t_thread.inside) rank->retire(rank->find(comm));
  return inside([&] { return real(comm); });
}

FALCON_HOOK ncclCommGetAsyncError(Comm comm, Result* error) {
  FALCON_REAL(ncclCommGetAsyncError);
  const Result result = real(comm, error);
  if (result != falcon::nccl::kSuccess || error == nullptr || falcon::nccl::accepted(*error)) return result;
  Rank* rank = Rank::current();
  Communicator* communicator = rank == nullptr ? nullptr : rank->find(comm);
  const auto code = static_cast<uint32_t>(*error);
  if (communicator == nullptr || !rank->recording()) return result;
  if (communicator->error.exchange(code) == code) return result;  // polled many times
  falcon::Record record{};
  record.t_start_ns = falcon::monotonic_ns();
  record.comm = rank->id_of(communicator);
  record.bytes = code;
  record.peer_or_root = -1;
  record.flags = falcon::kFailed;
  record.kind = falcon::Kind::kAsyncError;
  rank->ring().append(record);
  return result;
}

FALCON_HOOK ncclGroupStart() {
  FALCON_REAL(ncclGroupStart);
  falcon::nccl::Thread& thread = t_thread;
  if (thread.inside) return real();
  if (thread.depth == 0) {
    const int error = errno;
    Rank* rank = Rank::existing();
    if (rank != nullptr) {
      rank->pass_gate();
      thread.group = rank->next_group();
    }
    errno = error;
  }
  const Result result = inside([&] { return real(); });
  if (falcon::nccl::accepted(result)) ++thread.depth;
  return result;
}

FALCON_HOOK ncclGroupEnd() {
  FALCON_REAL(ncclGroupEnd);
  falcon::nccl::Thread& thread = t_thread;
  if (thread.inside || thread.depth == 0) return real();
  if (--thread.depth > 0) return inside([&] { return real(); });
  const Result result = falcon::nccl::end_group([&] { return real(); });
  const int after = errno;
  for (uint32_t i = 0; i < thread.pendings && falcon::nccl::accepted(result); ++i) {
    falcon::nccl::add(thread.pending[i]);
  }
  thread.pendings = 0;
  thread.calls = 0;
  thread.sample = false;
  errno = after;
  return result;
}

// A simulated end ends the group without running it.
FALCON_HOOK ncclGroupSimulateEnd(void* info) {
  FALCON_REAL(ncclGroupSimulateEnd);
  falcon::nccl::Thread& thread = t_thread;
  if (!thread.inside && thread.depth > 0) --thread.depth;
  if (!thread.inside && thread.depth == 0) {
    thread.pendings = 0;
    thread.calls = 0;
    thread.sample = false;
  }
  return inside([&] { return real(info); });
}
// NOLINTEND(readability-identifier-naming)
