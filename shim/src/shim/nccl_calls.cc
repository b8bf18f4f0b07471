// NCCL's collectives, sends and receives. A call returns when it is enqueued: its record says when, and device.cc
// measures when the device ran it. Whatever NCCL calls in turn (an all-to-all made of sends and receives) is a part of
// that call.
//
// A symbol that the loaded library lacks cannot be hidden from dlsym(RTLD_DEFAULT), which finds ours; calling it
// answers ncclInvalidUsage and does nothing. A dlsym on the library's own handle never finds ours.

#include "nccl_communicators.h"

namespace falcon::nccl {
namespace {

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

}  // namespace
}  // namespace falcon::nccl

using falcon::Op;
using falcon::nccl::Comm;
using falcon::nccl::enqueue;
using falcon::nccl::Result;
using falcon::nccl::Stream;

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
// NOLINTEND(readability-identifier-naming)
