// The same records by NCCL's own profiler interface, for an NCCL that the hooks cannot see: linked statically, or
// reached by dlsym. Chosen by NCCL_PROFILER_PLUGIN, which names this library. NCCL then gets the copy that is already
// preloaded, so that there is one rank, one ring and one set of counters, whichever way a call comes. A communicator
// that a hooked call makes is left to the hooks, whatever the variable says.
//
// NCCL calls these functions on its own threads: nothing here waits, allocates or fails, and the answer is always
// "success". There is no gate here: a rank that is seen this way is tracked, not paused.

#include <errno.h>
#include <string.h>

#include "nccl/api.h"
#include "nccl/channels.h"
#include "nccl/creation.h"
#include "nccl/profiler_api.h"
#include "rank/rank.h"

namespace falcon::nccl {
namespace {

// A communicator as NCCL reports it. Its address stands for the handle, which the interface does not give.
struct ProfiledCommunicator {
  Communicator* communicator;
  std::atomic<int*> mask;           // NCCL's own, which it reads at every call
  std::atomic<uint32_t> announced;  // sends and receives that were called and have not gone to the device yet
  std::atomic<bool> taken;
};

constexpr uint32_t kProfiled = 1024;
ProfiledCommunicator g_profiled[kProfiled];

struct Call {
  Op op;
  uint64_t count;
  Element type;
  int32_t peer;
  uint32_t channels;  // 0: not known
};

struct Place {
  uint16_t stream;
  uint32_t group;
  bool captured;
};

// Handles are numbers, never followed: a stale handle does no harm. The uppermost bits say what it is.
enum What : uint64_t { kNothing = 0, kGroup = 1, kSingle = 2, kWatched = 3, kChannel = 4 };
constexpr uint32_t kWhatShift = 60;
static_assert(kChannelCallBits < kWhatShift && sizeof(void*) == sizeof(uint64_t));

void* handle_of(What what, uint64_t value) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): never followed
  return reinterpret_cast<void*>(static_cast<uint64_t>(what) << kWhatShift | value);
}
What what_of(const void* handle) { return static_cast<What>(reinterpret_cast<uint64_t>(handle) >> kWhatShift); }
uint64_t value_of(const void* handle) { return reinterpret_cast<uint64_t>(handle) & ((1ULL << kWhatShift) - 1); }

void* handle_of(const Place& place) {
  return handle_of(
      kSingle, static_cast<uint64_t>(place.captured) << 48U | static_cast<uint64_t>(place.stream) << 32U | place.group);
}
Place place_of(const void* handle) {
  if (what_of(handle) == kGroup) return {0, static_cast<uint32_t>(value_of(handle)), false};
  if (what_of(handle) != kSingle) return {};
  const uint64_t value = value_of(handle);
  return {static_cast<uint16_t>(value >> 32U), static_cast<uint32_t>(value), (value >> 48U & 1U) != 0};
}

struct Named {
  const char* name;
  Op op;
};
constexpr Named kFunctions[] = {
    {"Broadcast", Op::kBroadcast}, {"Reduce", Op::kReduce},
    {"AllGather", Op::kAllGather}, {"ReduceScatter", Op::kReduceScatter},
    {"AllReduce", Op::kAllReduce}, {"SendRecv", Op::kUnknown},
    {"Send", Op::kSend},           {"Recv", Op::kRecv},
    {"AlltoAll", Op::kAllToAll},   {"Gather", Op::kGather},
    {"Scatter", Op::kScatter},
};
constexpr uint8_t kNumberedFunctions = 8;  // v1 has these as numbers, in this order

Op operation(const char* name) {
  for (const Named& known : kFunctions) {
    if (name != nullptr && strcmp(known.name, name) == 0) return known.op;
  }
  return Op::kUnknown;
}
Op operation(uint8_t number) { return number < kNumberedFunctions ? kFunctions[number].op : Op::kUnknown; }

bool rooted(Op op) { return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter; }

template <typename Body>
const Body& body_of(const void* descriptor) {
  return static_cast<const Descriptor<Body>*>(descriptor)->body;
}

template <typename Body>
Call collective(const void* descriptor, uint32_t channels) {
  const Body& body = body_of<Body>(descriptor);
  const Op op = operation(body.function);
  return {op, body.count, element(body.type), rooted(op) ? body.root : -1, channels};
}

template <typename Body>
Call single(const void* descriptor, uint32_t channels) {
  const Body& body = body_of<Body>(descriptor);
  return {operation(body.function), body.count, element(body.type), body.peer, channels};
}

template <int kVersion>
Call collective_of(const void* descriptor) {
  if constexpr (kVersion == 1) return collective<CollV1>(descriptor, 0);
  if constexpr (kVersion == 2 || kVersion == 3) return collective<CollV2>(descriptor, 0);
  return collective<CollV4>(descriptor, body_of<CollV4>(descriptor).channels);
}

template <int kVersion>
Call single_of(const void* descriptor) {
  if constexpr (kVersion == 1) return single<P2pV1>(descriptor, 0);
  if constexpr (kVersion == 2 || kVersion == 3) return single<P2pV2>(descriptor, 0);
  return single<P2pV4>(descriptor, body_of<P2pV4>(descriptor).channels);
}

// Whether NCCL was asked to report this call's channels. Also asks NCCL whether to report the next call's channels.
bool times_this_call(Rank* rank, ProfiledCommunicator* profiled) {
  int* mask = profiled->mask.load(std::memory_order_relaxed);
  const int now = __atomic_load_n(mask, __ATOMIC_RELAXED);
  constexpr int kChannels = static_cast<int>(kKernelChannelEvent);
  const int next = rank->sampled() ? now | kChannels : now & ~kChannels;
  if (next != now) __atomic_store_n(mask, next, __ATOMIC_RELAXED);
  return (now & kChannels) != 0;
}

// Counts and records a call. Returns the number that the events of its channels must name; 0 where no event will come.
template <int kVersion>
ChannelCall enqueue(Rank* rank, ProfiledCommunicator* profiled, const Call& call, const Place& place) {
  const bool alone = call.op == Op::kSend || call.op == Op::kRecv;
  const Membership member =
      alone ? rank->join(profiled->communicator, call.op == Op::kSend ? Traffic::kSend : Traffic::kRecv, call.peer)
            : rank->join(profiled->communicator);
  Record record{};
  record.t_start_ns = monotonic_ns();
  record.comm = member.id;
  record.comm_seq = member.call;
  record.bytes = call.count * call.type.bytes;
  if (call.op == Op::kAllToAll) record.bytes *= profiled->communicator->shape.load(std::memory_order_relaxed) >> 32U;
  record.group = place.group;
  record.peer_or_root = call.peer;
  record.stream = place.stream;
  record.op = call.op;
  record.dtype = call.type.wire;
  record.kind = Kind::kEnqueued;
  if (place.captured) record.flags = kCaptured;
  if (rank->recording()) rank->ring().append(record);
  // Before v4 a call's channels are not counted, so that it is unknown which channel is the last.
  if constexpr (kVersion < 4) return 0;
  return times_this_call(rank, profiled) && !place.captured ? watch_channels(rank, {record, member.counted}) : 0;
}

void* watched(ChannelCall call) { return call == 0 ? nullptr : handle_of(kWatched, call); }

// Takes one of the announced calls. Where none is announced, the event is part of a collective, or of a graph that runs
// again.
bool take_announced(ProfiledCommunicator* profiled) {
  uint32_t left = profiled->announced.load(std::memory_order_relaxed);
  while (left > 0 && !profiled->announced.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
  }
  return left > 0;
}

// v5: NCCL reports the program's calls themselves; what goes to the device names the call that it comes from.
void* start_v5(Rank* rank, ProfiledCommunicator* profiled, uint64_t type, const Head& head, const void* descriptor) {
  switch (type) {
    case kGroupApiEvent:
      return body_of<GroupApi>(descriptor).depth > 1 ? handle_of(kGroup, rank->next_group()) : nullptr;
    case kCollApiEvent: {
      const auto& api = body_of<CollApi>(descriptor);
      const Place place{rank->stream(api.stream), place_of(head.parent).group, api.captured};
      return watched(enqueue<5>(rank, profiled, collective<CollApi>(descriptor, 0), place));
    }
    case kCollEvent:
      if (what_of(head.parent) == kWatched) {
        expect_channels(value_of(head.parent), body_of<CollV4>(descriptor).channels);
        return head.parent;
      }
      return nullptr;
    case kP2pApiEvent: {
      const auto& api = body_of<P2pApi>(descriptor);
      profiled->announced.fetch_add(1, std::memory_order_relaxed);
      return handle_of(Place{rank->stream(api.stream), place_of(head.parent).group, api.captured});
    }
    case kP2pEvent: {
      if (!take_announced(profiled)) return nullptr;
      const Call call = single_of<5>(descriptor);
      const ChannelCall channels = enqueue<5>(rank, profiled, call, place_of(head.parent));
      expect_channels(channels, call.channels);
      return watched(channels);
    }
    default:
      return nullptr;
  }
}

template <int kVersion>
void* start_before_v5(Rank* rank, ProfiledCommunicator* profiled, uint64_t type, const void* descriptor) {
  if (type != kCollEvent && type != kP2pEvent) return nullptr;
  const Call call = type == kCollEvent ? collective_of<kVersion>(descriptor) : single_of<kVersion>(descriptor);
  const ChannelCall channels = enqueue<kVersion>(rank, profiled, call, Place{});
  expect_channels(channels, call.channels);
  return watched(channels);
}

template <int kVersion>
int start(void* context, void** handle, const void* descriptor) {
  if (handle == nullptr) return kSuccess;
  *handle = nullptr;
  if (context == nullptr || descriptor == nullptr) return kSuccess;
  const int error = errno;
  auto* profiled = static_cast<ProfiledCommunicator*>(context);
  const Head& head = *static_cast<const Head*>(descriptor);
  const uint64_t type = kVersion < 5 ? head.type & 0xFFU : head.type;
  if (type == kKernelChannelEvent) {
    if (what_of(head.parent) == kWatched) {
      channel_began(value_of(head.parent), body_of<KernelChannel>(descriptor).start_ns);
      *handle = handle_of(kChannel, value_of(head.parent));
    }
    return kSuccess;
  }
  Rank* rank = Rank::current();
  if (rank != nullptr) {
    if constexpr (kVersion < 5) {
      *handle = start_before_v5<kVersion>(rank, profiled, type, descriptor);
    } else {
      *handle = start_v5(rank, profiled, type, head, descriptor);
    }
  }
  errno = error;
  return kSuccess;
}

int stop(void* handle) {
  if (what_of(handle) == kChannel) channel_ended(value_of(handle));
  return kSuccess;
}

int state(void* handle, int reached, const void* details) {
  if (what_of(handle) == kChannel && reached == kKernelChannelStop && details != nullptr) {
    channel_stopped(value_of(handle), static_cast<const KernelChannelStop*>(details)->stop_ns);
  }
  return kSuccess;
}

ProfiledCommunicator* free_place() {
  for (ProfiledCommunicator& profiled : g_profiled) {
    bool taken = false;
    if (profiled.taken.compare_exchange_strong(taken, true, std::memory_order_acq_rel)) return &profiled;
  }
  return nullptr;
}

void give_up(ProfiledCommunicator* profiled) {
  profiled->announced.store(0, std::memory_order_relaxed);
  profiled->taken.store(false, std::memory_order_release);
}

// Without a context and with its mask untouched, NCCL goes on as without a plugin.
void begin(void** context, int* mask, uint32_t events, int32_t own_rank, int32_t size) {
  if (context == nullptr || mask == nullptr) return;
  *context = nullptr;
  const int error = errno;
  Rank* rank = is_made_by_hooks(size, own_rank) ? nullptr : Rank::current();
  ProfiledCommunicator* profiled = rank == nullptr ? nullptr : free_place();
  if (profiled != nullptr) {
    profiled->mask.store(mask, std::memory_order_relaxed);
    profiled->communicator = rank->introduce(profiled, own_rank, size, 0);
    if (profiled->communicator != nullptr) {
      *context = profiled;
      __atomic_fetch_or(mask, static_cast<int>(events), __ATOMIC_RELAXED);
    } else {
      give_up(profiled);
    }
  }
  errno = error;
}

int finalize(void* context) {
  Rank* rank = Rank::existing();
  if (context == nullptr || rank == nullptr) return kSuccess;
  auto* profiled = static_cast<ProfiledCommunicator*>(context);
  rank->retire(profiled->communicator);
  give_up(profiled);
  return kSuccess;
}

constexpr uint32_t kCalls = kCollEvent | kP2pEvent;
constexpr uint32_t kApiCalls = kGroupApiEvent | kCollApiEvent | kP2pApiEvent;

int init_v1(void** context, int* mask) {
  begin(context, mask, kCalls, -1, 0);
  return kSuccess;
}

int init_v4(void** context, int* mask, const char* /*name*/, uint64_t /*communicator*/, int /*nodes*/, int size,
            int rank, const void* /*log*/) {
  begin(context, mask, kCalls, rank, size);
  return kSuccess;
}

int init_v5(void** context, uint64_t /*communicator*/, int* mask, const char* /*name*/, int /*nodes*/, int size,
            int rank, const void* /*log*/) {
  begin(context, mask, kCalls | kApiCalls, rank, size);
  return kSuccess;
}

constexpr char kName[] = "falcon";

}  // namespace
}  // namespace falcon::nccl

using falcon::nccl::finalize;
using falcon::nccl::InitV1;
using falcon::nccl::InitV4;
using falcon::nccl::InitV5;
using falcon::nccl::kName;
using falcon::nccl::Profiler;
using falcon::nccl::start;
using falcon::nccl::state;
using falcon::nccl::stop;

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
extern "C" {
#define FALCON_PROFILER(version, kind, begin)                                                 \
  extern __attribute__((visibility("default"))) const Profiler<kind> ncclProfiler_v##version; \
  const Profiler<kind> ncclProfiler_v##version = {kName, begin, start<version>, stop, state, finalize}

FALCON_PROFILER(1, InitV1, falcon::nccl::init_v1);
FALCON_PROFILER(2, InitV1, falcon::nccl::init_v1);
FALCON_PROFILER(3, InitV1, falcon::nccl::init_v1);
FALCON_PROFILER(4, InitV4, falcon::nccl::init_v4);
FALCON_PROFILER(5, InitV5, falcon::nccl::init_v5);
}  // extern "C"
// NOLINTEND(readability-identifier-naming)
