// NCCL's groups: the calls inside a group start when the outermost group ends, and are timed there.
#include "nccl/groups.h"

namespace falcon::nccl {
namespace {

constexpr uint32_t kStreamsOfGroup = 8;

constexpr uint32_t kRooms = 16;  // threads that are in a group at the same time; what others call is not timed
Room g_rooms[kRooms];

Room* take_room() {
  for (Room& room : g_rooms) {
    bool taken = false;
    if (room.taken.compare_exchange_strong(taken, true, std::memory_order_acquire)) return &room;
  }
  return nullptr;
}

void leave_room(Thread* thread) {
  if (thread->room != nullptr) thread->room->taken.store(false, std::memory_order_release);
  thread->room = nullptr;
}

Record record_of(Rank* rank, const void* stream, uint8_t dtype, const Membership& member) {
  Record record{};
  record.comm = member.id;
  record.comm_seq = member.call;
  record.group = t_thread.group;
  record.stream = rank->stream(stream);
  record.dtype = dtype;
  record.kind = Kind::kEnqueued;
  return record;
}

Record record_of(Rank* rank, const Single& single, const Membership& member, uint64_t start_ns) {
  Record record = record_of(rank, single.stream, single.dtype, member);
  record.t_start_ns = start_ns;
  record.bytes = single.bytes;
  record.peer_or_root = single.peer;
  record.op = single.op;
  return record;
}

// As much of the number of peers as is known without a list of them: an exchange names each once a direction.
Record record_of(Rank* rank, const Exchange& exchange, const Membership& member) {
  Record record = record_of(rank, exchange.stream, exchange.dtype, member);
  record.t_start_ns = exchange.start_ns;
  record.bytes = exchange.bytes;
  record.peer_or_root = static_cast<int32_t>(exchange.sends > exchange.receives ? exchange.sends : exchange.receives);
  record.op = Op::kAllToAll;
  if (exchange.captured) record.flags = kCaptured;
  return record;
}

// Null: the group has too many communicators, or no room.
Exchange* exchange_of(const Single& single) {
  Thread& thread = t_thread;
  if (thread.room == nullptr) return nullptr;
  for (uint32_t i = 0; i < thread.exchanges; ++i) {
    if (thread.room->exchange[i].communicator == single.communicator) return &thread.room->exchange[i];
  }
  if (thread.exchanges == kExchanges || single.communicator == nullptr) return nullptr;
  Exchange* fresh = &thread.room->exchange[thread.exchanges++];
  *fresh = {};
  fresh->communicator = single.communicator;
  fresh->stream = single.stream;
  fresh->start_ns = monotonic_ns();
  fresh->dtype = single.dtype;
  fresh->captured = capturing(single.stream);
  // A rank that has nothing for most others makes few calls: what was an exchange before is one again.
  fresh->whole = single.communicator->exchanging.load(std::memory_order_relaxed) != 0;
  return fresh;
}

// Notes whom a call is with: as long as these are two other ranks, they are known by name.
void meet_peer(Exchange* exchange, int32_t peer) {
  const uint64_t shape = exchange->communicator->shape.load(std::memory_order_relaxed);
  const bool itself = shape != 0 && static_cast<int32_t>(shape & UINT32_MAX) == peer;
  for (uint32_t i = 0; i < exchange->others_met && i < kOthers; ++i) {
    if (exchange->others[i] == peer) return;
  }
  if (exchange->others_met < kOthers) exchange->others[exchange->others_met] = peer;
  exchange->others_met = itself || exchange->others_met >= kOthers ? kOthers + 1 : exchange->others_met + 1;
}

bool is_exchange(const Exchange& exchange) {
  return exchange.others_met > kOthers && exchange.sends > 0 && exchange.receives > 0;
}

// Gives the group's sends and receives their numbers and records, as singles or as exchanges.
void settle_singles(Rank* rank, Timed* whole) {
  Thread& thread = t_thread;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < thread.calls; ++i) {
    GroupCall call = thread.room->call[i];
    if (call.exchange != nullptr && call.exchange->whole) continue;
    if (call.exchange != nullptr) {
      const Membership member = rank->number_single(call.exchange->communicator, call.timed.counted);
      call.timed.record.comm = member.id;
      call.timed.record.comm_seq = member.call;
      thread.sample = (rank->sampled() && call.timed.record.flags == 0) || thread.sample;
      if (rank->recording()) rank->ring().append(call.timed.record);
    }
    thread.room->call[kept++] = call;
  }
  thread.calls = kept;
  for (uint32_t i = 0; i < thread.exchanges; ++i) {
    const Exchange& exchange = thread.room->exchange[i];
    if (!exchange.whole) continue;
    const Membership member = rank->join_exchange(exchange.communicator);
    whole[i] = {record_of(rank, exchange, member), member.counted};
    thread.sample = (rank->sampled() && !exchange.captured) || thread.sample;
    if (rank->recording()) rank->ring().append(whole[i].record);
  }
}

// What the group's end starts on a stream, at most kTimedCalls.
uint32_t calls_on(const void* stream, const Timed* whole, Timed* calls) {
  const Thread& thread = t_thread;
  uint32_t count = 0;
  for (uint32_t i = 0; i < thread.exchanges; ++i) {
    if (thread.room->exchange[i].whole && thread.room->exchange[i].stream == stream) calls[count++] = whole[i];
  }
  for (uint32_t i = 0; i < thread.calls && count < kTimedCalls; ++i) {
    if (thread.room->call[i].stream == stream) calls[count++] = thread.room->call[i].timed;
  }
  return count;
}

struct Streams {
  const void* stream[kStreamsOfGroup];
  Sample* sample[kStreamsOfGroup];
  uint32_t count;
};

void begin_on(Rank* rank, const void* stream, Streams* streams) {
  for (uint32_t i = 0; i < streams->count; ++i) {
    if (streams->stream[i] == stream) return;
  }
  if (streams->count == kStreamsOfGroup) return;
  streams->stream[streams->count] = stream;
  streams->sample[streams->count++] = begin_sample(rank, stream);
}

// One pair of events per stream around the end of the outermost group: that is what starts its calls.
template <typename Call>
Result end_group(Call call) {
  Thread& thread = t_thread;
  Rank* rank = thread.calls + thread.exchanges > 0 ? Rank::current() : nullptr;
  Streams streams{};
  Timed whole[kExchanges];
  const int error = errno;
  if (rank != nullptr) settle_singles(rank, whole);
  for (uint32_t i = 0; rank != nullptr && thread.sample && i < thread.exchanges; ++i) {
    if (thread.room->exchange[i].whole) begin_on(rank, thread.room->exchange[i].stream, &streams);
  }
  for (uint32_t i = 0; rank != nullptr && thread.sample && i < thread.calls; ++i) {
    begin_on(rank, thread.room->call[i].stream, &streams);
  }
  errno = error;
  const Result result = inside(call);
  for (uint32_t i = 0; i < streams.count; ++i) {
    if (streams.sample[i] == nullptr) continue;
    Timed timed[kTimedCalls];
    const uint32_t count = result == kSuccess ? calls_on(streams.stream[i], whole, timed) : 0;
    end_sample(streams.sample[i], streams.stream[i], timed, count);
  }
  return result;
}

void forget_group() {
  Thread& thread = t_thread;
  thread.pendings = 0;
  thread.calls = 0;
  thread.exchanges = 0;
  thread.sample = false;
  leave_room(&thread);
}

}  // namespace

void keep_single(Rank* rank, const Single& single, const Counted& counted, bool accepted) {
  Thread& thread = t_thread;
  Exchange* exchange = accepted ? exchange_of(single) : nullptr;
  if (exchange != nullptr) {
    ++(single.op == Op::kSend ? exchange->sends : exchange->receives);
    exchange->bytes += single.bytes;
    if (!exchange->whole) meet_peer(exchange, single.peer);
    if (!exchange->whole && is_exchange(*exchange)) {
      exchange->whole = true;
      exchange->communicator->exchanging.store(1, std::memory_order_relaxed);
    }
    if (exchange->whole) return;
  }
  if (exchange != nullptr && thread.calls < kTimedCalls) {
    Record record = record_of(rank, single, Membership{}, monotonic_ns());
    if (exchange->captured) record.flags = kCaptured;
    thread.room->call[thread.calls++] = {single.stream, {record, counted}, exchange};
    return;
  }
  Record record = record_of(rank, single, rank->number_single(single.communicator, counted), monotonic_ns());
  if (!accepted) record.flags = kFailed;
  if (rank->recording()) rank->ring().append(record);
}

}  // namespace falcon::nccl

using falcon::Rank;
using falcon::nccl::inside;
using falcon::nccl::Result;
using falcon::nccl::t_thread;

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
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
    thread.room = falcon::nccl::take_room();
    errno = error;
  }
  const Result result = inside([&] { return real(); });
  if (falcon::nccl::accepted(result)) ++thread.depth;
  if (thread.depth == 0) falcon::nccl::leave_room(&thread);
  return result;
}

FALCON_HOOK ncclGroupEnd() {
  FALCON_REAL(ncclGroupEnd);
  falcon::nccl::Thread& thread = t_thread;
  if (thread.inside || thread.depth == 0) return real();
  if (--thread.depth > 0) return inside([&] { return real(); });
  const Result result = falcon::nccl::end_group([&] { return real(); });
  const int after = errno;
  for (uint32_t i = 0; i < thread.pendings; ++i) falcon::nccl::settle(thread.room->pending[i], result);
  falcon::nccl::forget_group();
  errno = after;
  return result;
}

// A simulated end ends the group without running it.
FALCON_HOOK ncclGroupSimulateEnd(void* info) {
  FALCON_REAL(ncclGroupSimulateEnd);
  falcon::nccl::Thread& thread = t_thread;
  if (!thread.inside && thread.depth > 0) --thread.depth;
  if (!thread.inside && thread.depth == 0) {
    for (uint32_t i = 0; i < thread.pendings; ++i) falcon::nccl::end_making(thread.room->pending[i].making);
    falcon::nccl::forget_group();
  }
  return inside([&] { return real(info); });
}
// NOLINTEND(readability-identifier-naming)
