// The consistent pause, seen from one rank. A thread waits before a call while every target of its rank is met. As long
// as a target is not met, the rank goes on, whatever the call is: its calls raise its counters, and with them the
// targets of its peers. The gate can only delay: it opens at its deadline, when the agent's heart stops, and when the
// table cannot be read.

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "rank/rank.h"

namespace falcon {
namespace {

constexpr uint64_t kDeadAgentNs = 2000000000;
constexpr timespec kPause{0, 200000};
constexpr int kTries = 1000;  // of reading a table that is being written, before the gate counts as broken

enum Reason : uint32_t { kDeadline = 1, kAgentDead = 2, kUnreadable = 3 };

}  // namespace

bool Rank::targets_met(uint64_t* table_epoch) {
  const ControlHeader* header = control_.header();
  const uint32_t pid = ring_->header().pid;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const uint64_t before = header->table_epoch.load(std::memory_order_acquire);
    const uint32_t entries = header->entries.load(std::memory_order_relaxed);
    bool met = true;
    uint32_t own_targets = 0;
    for (uint32_t i = 0; i < entries && i < control_.capacity(); ++i) {
      const GateEntry& entry = control_.entries()[i];
      if (entry.pid.load(std::memory_order_relaxed) != pid) continue;
      ++own_targets;
      const uint64_t target = entry.target.load(std::memory_order_relaxed);
      const uint64_t key = entry.key.load(std::memory_order_relaxed);
      if (target == 0) continue;
      const Counter* counter = ring_->counter(key);
      if (counter == nullptr || counter->entered.load(std::memory_order_acquire) < target) met = false;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if ((before & 1U) == 0 && header->table_epoch.load(std::memory_order_relaxed) == before) {
      *table_epoch = before;
      return met && own_targets > 0;  // a rank without targets is not part of the pause
    }
    nanosleep(&kPause, nullptr);
  }
  *table_epoch = 1;
  return false;
}

__attribute__((noinline)) void Rank::wait_at_gate() {
  const int error = errno;
  const ControlHeader* control = control_.header();
  RingHeader& status = ring_->header();
  bool waiting = false;
  while (control_.armed()) {
    const uint64_t gate = control->gate.load(std::memory_order_acquire);
    if (opened_epoch_.load(std::memory_order_relaxed) == gate) break;
    const uint64_t now = monotonic_ns();
    const uint64_t beat = control->heartbeat_ns.load(std::memory_order_relaxed);
    uint64_t table = 0;
    uint32_t reason = 0;
    if (now >= control->deadline_ns.load(std::memory_order_relaxed)) reason = kDeadline;
    // All clocks are this machine's: a beat that lies ahead is damage, and must not hold the gate until its time comes.
    if ((now > beat ? now - beat : beat - now) > kDeadAgentNs) reason = kAgentDead;
    const bool met = reason == 0 && targets_met(&table);
    if (reason == 0 && (table & 1U) != 0) reason = kUnreadable;
    if (reason != 0) {
      opened_epoch_.store(gate, std::memory_order_relaxed);
      status.gate_reason.store(reason, std::memory_order_relaxed);
      status.gate_opened.store(gate, std::memory_order_release);
      break;
    }
    if (!met) break;
    if (!waiting) {
      waiting = true;
      status.waiting.fetch_add(1, std::memory_order_acq_rel);
    }
    status.table_seen.store(table, std::memory_order_relaxed);
    status.gate_waited.store(gate, std::memory_order_release);
    nanosleep(&kPause, nullptr);
  }
  if (waiting) status.waiting.fetch_sub(1, std::memory_order_acq_rel);
  errno = error;
}

}  // namespace falcon
