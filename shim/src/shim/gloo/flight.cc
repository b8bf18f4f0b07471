// Gloo throws when a peer dies, and that exception must cross our frame. A usual C++ cleanup would need a landing pad:
// a personality routine and _Unwind_Resume from a C++ runtime, ours beside the program's own. Instead the frame names
// a personality routine of our own, which the program's unwinder calls on its way through: it notes the end and
// answers "go on". No runtime is needed, and nothing is resolved in a process that never throws.

#include "gloo/flight.h"

namespace falcon {
namespace {

struct Flight {
  Record record;
  Ring* ring;
  Counter* counter;
  Flight* outer;  // a collective built on others
};

// The library is loaded at the program's start, so that the fast model of thread-local storage holds.
__attribute__((tls_model("initial-exec"))) thread_local Flight* t_flight = nullptr;

void land(uint16_t flags) {
  Flight* flight = t_flight;
  t_flight = flight->outer;
  if (flight->ring != nullptr) flight->record.duration_ns = monotonic_ns() - flight->record.t_start_ns;
  flight->record.flags = flags;
  flight->counter->finished.fetch_add(1, std::memory_order_release);
  if (flight->ring != nullptr) flight->ring->append(flight->record);
}

}  // namespace

// The signature and values of the Itanium C++ ABI, the same on x86_64 and aarch64.
extern "C" __attribute__((visibility("hidden"), used)) int falcon_passing_through(int /*version*/, int actions,
                                                                                  uint64_t /*exception_class*/,
                                                                                  void* /*exception*/,
                                                                                  void* /*context*/) {
  constexpr int kCleanupPhase = 2;
  constexpr int kContinueUnwind = 8;
  if ((actions & kCleanupPhase) != 0) land(kFailed);
  return kContinueUnwind;
}

__attribute__((noinline)) void fly(Collective call, void* options, const Record& record, Ring* ring, Counter* counter) {
  Flight flight{record, ring, counter, t_flight};
  // 0x1b: a 4-byte offset from the place itself (DW_EH_PE_pcrel | DW_EH_PE_sdata4).
  asm volatile(".cfi_personality 0x1b, falcon_passing_through");
  t_flight = &flight;
  if (ring != nullptr) flight.record.t_start_ns = monotonic_ns();
  call(options);
  asm volatile("" ::: "memory");  // not a tail call: the frame must be there while the call lasts
  land(0);
}

void name_peer(int32_t peer, Counter* counter) {
  t_flight->record.peer_or_root = peer;
  t_flight->counter = counter;
}

bool in_flight() { return t_flight != nullptr; }

}  // namespace falcon
