#include "nccl/channels.h"

#include <atomic>

namespace falcon {
namespace {

enum State : uint64_t { kFree = 0, kFilling = 1, kOpen = 2, kClosing = 3 };
constexpr uint32_t kPlaces = 4096;
constexpr uint32_t kPlaceBits = 12;
static_assert(1U << kPlaceBits == kPlaces && kPlaceBits + 32 == kChannelCallBits);

struct Place {
  std::atomic<uint64_t> life;  // number of the call in this place, from 1, << 2 | State
  std::atomic<uint32_t> channels;
  std::atomic<uint32_t> ended;
  std::atomic<uint64_t> first_ns;
  std::atomic<uint64_t> last_ns;
  Rank* rank;  // this and `timed`: whoever moved the state to kFilling or kClosing
  Timed timed;
};

Place g_places[kPlaces];
std::atomic<uint32_t> g_next{0};

uint64_t life_of(uint64_t number, State state) { return number << 2U | state; }

Place* open_place(ChannelCall call) {
  if (call == 0) return nullptr;
  Place* place = &g_places[call % kPlaces];
  return place->life.load(std::memory_order_acquire) == life_of(call >> kPlaceBits, kOpen) ? place : nullptr;
}

}  // namespace

ChannelCall watch_channels(Rank* rank, const Timed& call) {
  const uint32_t at = g_next.fetch_add(1, std::memory_order_relaxed) % kPlaces;
  Place* place = &g_places[at];
  uint64_t life = place->life.load(std::memory_order_acquire);
  const uint64_t state = life & 3U;
  const uint64_t number = (life >> 2U) % UINT32_MAX + 1;  // fits its bits, and is never 0
  // An open place belongs to a call 4096 calls ago: NCCL never reported the end of all its channels.
  if (state == kFilling || state == kClosing) return 0;
  if (!place->life.compare_exchange_strong(life, life_of(number, kFilling), std::memory_order_acq_rel)) return 0;
  place->channels.store(0, std::memory_order_relaxed);
  place->ended.store(0, std::memory_order_relaxed);
  place->first_ns.store(UINT64_MAX, std::memory_order_relaxed);
  place->last_ns.store(0, std::memory_order_relaxed);
  place->rank = rank;
  place->timed = call;
  place->life.store(life_of(number, kOpen), std::memory_order_release);
  return number << kPlaceBits | at;
}

void expect_channels(ChannelCall call, uint32_t channels) {
  Place* place = open_place(call);
  if (place != nullptr) place->channels.store(channels, std::memory_order_release);
}

void channel_began(ChannelCall call, uint64_t device_ns) {
  Place* place = open_place(call);
  if (place == nullptr) return;
  uint64_t seen = place->first_ns.load(std::memory_order_relaxed);
  while (device_ns < seen && !place->first_ns.compare_exchange_weak(seen, device_ns)) {
  }
}

void channel_stopped(ChannelCall call, uint64_t device_ns) {
  Place* place = open_place(call);
  if (place == nullptr) return;
  uint64_t seen = place->last_ns.load(std::memory_order_relaxed);
  while (device_ns > seen && !place->last_ns.compare_exchange_weak(seen, device_ns)) {
  }
}

void channel_ended(ChannelCall call) {
  Place* place = open_place(call);
  if (place == nullptr) return;
  const uint32_t ended = place->ended.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (ended != place->channels.load(std::memory_order_acquire)) return;
  const uint64_t number = call >> kPlaceBits;
  uint64_t life = life_of(number, kOpen);
  if (!place->life.compare_exchange_strong(life, life_of(number, kClosing), std::memory_order_acq_rel)) return;
  const uint64_t first = place->first_ns.load(std::memory_order_relaxed);
  const uint64_t last = place->last_ns.load(std::memory_order_relaxed);
  record_completion(place->rank, place->timed, last > first ? last - first : 0);
  place->life.store(life_of(number, kFree), std::memory_order_release);
}

}  // namespace falcon
