// Gloo's point-to-point calls. They are virtual, but the vtable's entries are symbols (libtorch_cpu.so exports them),
// so that a preloaded definition is called all the same. `send` and `recv` only begin a transfer, `waitSend` and
// `waitRecv` end it: the record has the time that the program waited. What a collective sends inside is a part of that
// collective.
//
// A buffer knows its transport context; a collective knows its group's context, which holds the transport context. The
// transport context's address is looked for in the group's context, once, so that both have the same communicator.

#include <errno.h>
#include <string.h>

#include <atomic>

#include "common/probe.h"
#include "common/symbols.h"
#include "gloo/flight.h"
#include "gloo/options.h"
#include "rank/rank.h"

namespace falcon {
namespace {

// Offsets on LP64, the same in Debian's Gloo of 2022 and in PyTorch 2.15's.
constexpr int kBufferSize = 16;     // UnboundBuffer: vtable, ptr, size, then shared_ptr<Context>
constexpr int kBufferContext = 24;  // transport::tcp::Context: vtable, rank, size
constexpr int kContextRank = 8;

struct Shape {
  int32_t rank;
  int32_t size;
};

// A transfer that was begun and not yet waited for.
struct Begun {
  std::atomic<const void*> buffer;
  Record record;
  Counter* counter;
};
constexpr uint32_t kBegun = 1024;  // begun at one time; further transfers leave no record
constexpr uint32_t kReach = 16;
Begun g_begun[kBegun];

uint32_t place(const void* buffer) {
  return static_cast<uint32_t>((reinterpret_cast<uintptr_t>(buffer) * 0x9E3779B97F4A7C15ULL) >> 54U);
}

void remember(const void* buffer, const Record& record, Counter* counter) {
  for (uint32_t i = 0; i < kReach; ++i) {
    Begun& begun = g_begun[(place(buffer) + i) % kBegun];
    const void* there = begun.buffer.load(std::memory_order_acquire);
    if (there != nullptr && there != buffer) continue;
    if (there == nullptr && !begun.buffer.compare_exchange_strong(there, buffer, std::memory_order_acq_rel)) continue;
    begun.record = record;
    begun.counter = counter;
    return;
  }
}

bool take(const void* buffer, Record* record, Counter** counter) {
  for (uint32_t i = 0; i < kReach; ++i) {
    Begun& begun = g_begun[(place(buffer) + i) % kBegun];
    if (begun.buffer.load(std::memory_order_acquire) != buffer) continue;
    *record = begun.record;
    *counter = begun.counter;
    begun.buffer.store(nullptr, std::memory_order_release);
    return true;
  }
  return false;
}

// The group that a transport context belongs to; one of its own while no collective was seen there.
Communicator* group_of(Rank* rank, const void* transport) {
  Communicator* known = rank->with_transport(transport);
  Shape shape{};
  if (known != nullptr) {
    memcpy(&shape, static_cast<const char*>(transport) + kContextRank, sizeof(shape));
    const uint64_t there = known->shape.load(std::memory_order_acquire);
    if (there >> 32U == static_cast<uint32_t>(shape.size) &&
        (there & UINT32_MAX) == static_cast<uint32_t>(shape.rank)) {
      return known;
    }
    known->transport.store(nullptr, std::memory_order_release);  // an address that was freed and used again
  }
  if (!probe(transport, kContextRank, &shape) || shape.rank < 0 || shape.rank >= shape.size || shape.size > (1 << 20)) {
    return nullptr;
  }
  for (uint32_t index = 0; (known = rank->at(index)) != nullptr; ++index) {
    if (holds_transport(known->handle.load(std::memory_order_acquire), transport)) break;
  }
  if (known == nullptr) known = rank->introduce(transport, shape.rank, shape.size, 0);
  if (known != nullptr) known->transport.store(transport, std::memory_order_release);
  return known;
}

// A receive from any of several ranks has no peer until it is done; it takes their list, a std::vector<int> that its
// caller owns, by address.
using Begin = void (*)(void*, int, uint64_t, size_t, size_t);
using BeginAny = void (*)(void*, void*, uint64_t, size_t, size_t);
using Wait = bool (*)(void*, int*, long);
constexpr int kAnyone = -1;

void note(Op op, void* buffer, int peer, size_t offset, size_t bytes) {
  const int error = errno;
  Rank* rank = in_flight() ? nullptr : Rank::current();
  if (rank != nullptr) {
    rank->pass_gate();
    const void* transport = *reinterpret_cast<void* const*>(static_cast<const char*>(buffer) + kBufferContext);
    const auto whole = *reinterpret_cast<const size_t*>(static_cast<const char*>(buffer) + kBufferSize);
    Communicator* group = group_of(rank, transport);
    const Membership member = peer == kAnyone
                                  ? rank->join_unknown(group)
                                  : rank->join(group, op == Op::kSend ? Traffic::kSend : Traffic::kRecv, peer);
    Record record{};
    record.comm = member.id;
    record.comm_seq = member.call;
    record.bytes = bytes > whole ? whole - (offset < whole ? offset : whole) : bytes;  // "all that is left" is -1
    record.peer_or_root = peer;
    record.op = op;
    record.kind = Kind::kBlocking;
    remember(buffer, record, member.counted.counter);
  }
  errno = error;
}

void begin(Begin original, Op op, void* buffer, int peer, uint64_t slot, size_t offset, size_t bytes) {
  note(op, buffer, peer, offset, bytes);
  original(buffer, peer, slot, offset, bytes);
}

void begin_any(BeginAny original, void* buffer, void* peers, uint64_t slot, size_t offset, size_t bytes) {
  note(Op::kRecv, buffer, kAnyone, offset, bytes);
  original(buffer, peers, slot, offset, bytes);
}

struct Waiting {
  Wait original;
  void* buffer;
  int* peer;
  long timeout;
  bool done;
  Rank* rank;
  uint64_t comm;  // where the sender is not known yet
};

void wait_on(void* argument) {
  auto* waiting = static_cast<Waiting*>(argument);
  waiting->done = waiting->original(waiting->buffer, waiting->peer, waiting->timeout);
}

void wait_on_anyone(void* argument) {
  auto* waiting = static_cast<Waiting*>(argument);
  int own = kAnyone;
  int* source = waiting->peer == nullptr ? &own : waiting->peer;
  waiting->done = waiting->original(waiting->buffer, source, waiting->timeout);
  if (waiting->done) name_peer(*source, waiting->rank->arrived(waiting->comm, *source));
}

bool wait(Wait original, void* buffer, int* peer, long timeout) {
  Record record;
  Counter* counter = nullptr;
  Rank* rank = in_flight() ? nullptr : Rank::existing();
  if (rank == nullptr || !take(buffer, &record, &counter)) return original(buffer, peer, timeout);
  Waiting waiting{original, buffer, peer, timeout, false, rank, record.comm};
  fly(record.peer_or_root == kAnyone ? wait_on_anyone : wait_on, &waiting, record,
      rank->recording() ? &rank->ring() : nullptr, counter);
  return waiting.done;
}

template <typename Function>
Function find(std::atomic<void*>& cache, const char* symbol) {
  void* found = cache.load(std::memory_order_acquire);
  if (found == nullptr) {
    const int error = errno;
    found = resolve_original(symbol);
    errno = error;
    if (found == nullptr) missing_original();
    cache.store(found, std::memory_order_release);
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace
}  // namespace falcon

// NOLINTBEGIN(bugprone-*,readability-identifier-naming): these are the mangled names of the methods that we stand in
// for
#define FALCON_BEGIN(symbol, op)                                                                                     \
  extern "C" __attribute__((visibility("default"))) void symbol(void* self, int peer, uint64_t slot, size_t offset,  \
                                                                size_t bytes) {                                      \
    static std::atomic<void*> cache{nullptr};                                                                        \
    falcon::begin(falcon::find<decltype(&symbol)>(cache, #symbol), falcon::Op::op, self, peer, slot, offset, bytes); \
  }
#define FALCON_BEGIN_ANY(symbol)                                                                                       \
  extern "C" __attribute__((visibility("default"))) void symbol(void* self, void* peers, uint64_t slot, size_t offset, \
                                                                size_t bytes) {                                        \
    static std::atomic<void*> cache{nullptr};                                                                          \
    falcon::begin_any(falcon::find<decltype(&symbol)>(cache, #symbol), self, peers, slot, offset, bytes);              \
  }
#define FALCON_WAIT(symbol)                                                                            \
  extern "C" __attribute__((visibility("default"))) bool symbol(void* self, int* peer, long timeout) { \
    static std::atomic<void*> cache{nullptr};                                                          \
    return falcon::wait(falcon::find<decltype(&symbol)>(cache, #symbol), self, peer, timeout);         \
  }

FALCON_BEGIN(_ZN4gloo9transport3tcp13UnboundBuffer4sendEimmm, kSend)
FALCON_BEGIN(_ZN4gloo9transport3tcp13UnboundBuffer4recvEimmm, kRecv)
FALCON_BEGIN_ANY(_ZN4gloo9transport3tcp13UnboundBuffer4recvESt6vectorIiSaIiEEmmm)
FALCON_WAIT(_ZN4gloo9transport3tcp13UnboundBuffer8waitSendEPiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEE)
FALCON_WAIT(_ZN4gloo9transport3tcp13UnboundBuffer8waitRecvEPiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEE)
// NOLINTEND(bugprone-*,readability-identifier-naming)
