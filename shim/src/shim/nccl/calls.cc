// NCCL's collectives, sends and receives. A call returns when it is enqueued: its record says when, and cuda/device.cc
// measures when the device ran it. Whatever NCCL calls in turn (an all-to-all made of sends and receives) is a part of
// that call.
//
// A symbol that the loaded library lacks cannot be hidden from dlsym(RTLD_DEFAULT), which finds ours; calling it
// answers ncclInvalidUsage and does nothing. A dlsym on the library's own handle never finds ours.

#include "nccl/communicators.h"
#include "nccl/groups.h"

namespace falcon::nccl {
namespace {

struct About {
  Op op;
  uint64_t elements;
  int type;
  int32_t peer;
  Comm comm;
  Stream stream;
};

Timed describe(Rank* rank, const About& about) {
  Communicator* communicator = meet(rank, about.comm);
  Membership member{};
  if (is_single(about.op)) {
    member = rank->join(communicator, traffic_of(about.op), about.peer);
  } else {
    member = rank->join(communicator);
  }
  const Element type = element(about.type);
  Record record{};
  record.t_start_ns = monotonic_ns();
  record.comm = member.id;
  record.comm_seq = member.call;
  record.bytes = about.elements * type.bytes;
  if (about.op == Op::kAllToAll && communicator != nullptr) {
    record.bytes *= communicator->shape.load(std::memory_order_relaxed) >> 32U;  // as much to each rank
  }
  record.group = t_thread.depth == 0 ? 0 : t_thread.group;
  record.peer_or_root = about.peer;
  record.stream = rank->stream(about.stream);
  record.op = about.op;
  record.dtype = type.wire;
  record.kind = Kind::kEnqueued;
  if (capturing(about.stream)) record.flags = kCaptured;
  return {record, member.counted};
}

// A send or a receive in a group: whether it is a record of its own shows when the group ends.
template <typename Call>
Result enqueue_single(Rank* rank, const About& about, int error, Call call) {
  Communicator* communicator = meet(rank, about.comm);
  const Element type = element(about.type);
  const Single single{communicator, about.op, about.peer, about.elements * type.bytes, type.wire, about.stream};
  const Counted counted = rank->count_single(communicator, traffic_of(about.op), about.peer);
  errno = error;
  const Result result = inside(call);
  const int after = errno;
  keep_single(rank, single, counted, accepted(result));
  errno = after;
  return result;
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
  if (thread.depth > 0 && is_single(about.op)) return enqueue_single(rank, about, error, call);
  if (thread.depth == 0) rank->pass_gate();
  Timed timed = describe(rank, about);
  const bool wanted = rank->sampled() && timed.record.flags == 0;
  Sample* sample = wanted && thread.depth == 0 ? begin_sample(rank, about.stream) : nullptr;
  errno = error;
  const Result result = inside(call);
  const int after = errno;
  if (!accepted(result)) timed.record.flags |= kFailed;
  if (rank->recording()) rank->ring().append(timed.record);
  // Where the communicator still works on it, nothing is on the stream yet.
  if (sample != nullptr) end_sample(sample, about.stream, &timed, result == kSuccess ? 1 : 0);
  if (thread.depth > 0 && accepted(result)) {
    thread.sample = thread.sample || wanted;
    if (thread.room != nullptr && thread.calls < kTimedCalls)
      thread.room->call[thread.calls++] = {about.stream, timed, nullptr};
  }
  errno = after;
  return result;
}

}  // namespace
}  // namespace falcon::nccl

using falcon::Op;
using falcon::nccl::Comm;
using falcon::nccl::Config;
using falcon::nccl::enqueue;
using falcon::nccl::Result;
using falcon::nccl::Stream;

#define FALCON_CALL(name, op, parameters, arguments, elements, type, peer)                        \
  FALCON_HOOK name parameters {                                                                   \
    FALCON_REAL(name);                                                                            \
    return enqueue({Op::op, elements, type, peer, comm, stream}, [&] { return real arguments; }); \
  }
#define FALCON_IGNORED(name, reason)
#include "nccl/functions.def"
