#include "common/ring.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <new>

namespace falcon {
namespace {

uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000ULL + static_cast<uint64_t>(now.tv_nsec);
}

constexpr uint32_t kReach = 1024;        // of the table's places, as far as a key is looked for
constexpr uint64_t kFreed = UINT64_MAX;  // a place that was in use: keys behind it are still found
constexpr auto kGraphs = static_cast<uint64_t>(Traffic::kGraph);  // counted by their own numbers, not a communicator's

uint32_t place(uint64_t key) { return static_cast<uint32_t>(key * 0x9E3779B97F4A7C15ULL >> 32U) & (kCounters - 1); }

}  // namespace

void Lock::take() {
  while (taken_.exchange(true, std::memory_order_acquire)) sched_yield();
}

uint64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

uint32_t check_of(const Record& record) {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15ULL;
  uint64_t words[8];
  memcpy(words, &record, sizeof(words));
  words[7] &= 0xFFFFFFFFULL;  // the check itself counts as zero
  uint64_t mixed = words[0];
  for (int i = 1; i < 8; ++i) {
    mixed = (mixed ^ words[i]) * kMix;
    mixed ^= mixed >> 32U;
  }
  return static_cast<uint32_t>(mixed);
}

Ring* Ring::create(const char* folder, const char* path, const RingIdentity& identity, uint32_t capacity,
                   void* storage) {
  char fresh[4096];
  const int length = snprintf(fresh, sizeof(fresh), "%s/.ring-%u", folder, identity.pid);
  if (length <= 0 || static_cast<size_t>(length) >= sizeof(fresh)) return nullptr;
  unlink(fresh);  // of an earlier process with our pid
  const int file = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return nullptr;
  const size_t counters_offset = kHeaderBytes + static_cast<size_t>(capacity) * sizeof(Record);
  const size_t size = counters_offset + kCounters * sizeof(Counter);
  void* mapped = MAP_FAILED;
  // Every page exists before anyone maps it: a full tmpfs is refused here, not by SIGBUS in a training call.
  if (fchmod(file, 0644) == 0 && posix_fallocate(file, 0, static_cast<off_t>(size)) == 0) {
    mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  }
  close(file);
  if (mapped == MAP_FAILED) {
    unlink(fresh);
    return nullptr;
  }
  auto* header = new (mapped) RingHeader{};
  header->magic = kRingMagic;
  header->version = kRingVersion;
  header->header_bytes = kHeaderBytes;
  header->record_bytes = sizeof(Record);
  header->capacity = capacity;
  header->pid = identity.pid;
  header->generation = identity.generation;
  header->rank = identity.rank;
  header->world_size = identity.world_size;
  header->local_rank = identity.local_rank;
  header->start_unix_ns = clock_ns(CLOCK_REALTIME);
  header->start_ns = monotonic_ns();
  header->counters_offset = counters_offset;
  header->counters = kCounters;
  header->counter_bytes = sizeof(Counter);
  if (rename(fresh, path) != 0) {
    munmap(mapped, size);
    unlink(fresh);
    return nullptr;
  }
  auto* slots = reinterpret_cast<Record*>(static_cast<char*>(mapped) + kHeaderBytes);
  auto* counters = reinterpret_cast<Counter*>(static_cast<char*>(mapped) + counters_offset);
  return new (storage) Ring(header, slots, counters);
}

Counter* Ring::counter(uint64_t key) {
  uint32_t at = place(key);
  for (uint32_t tried = 0; tried < kReach; ++tried, at = (at + 1) & (kCounters - 1)) {
    const uint64_t there = counters_[at].key.load(std::memory_order_acquire);
    if (there == key) return &counters_[at];
    if (there == 0) break;
  }
  return add_counter(key);
}

// One thread at a time: two that add the same key would choose different places, one of them freed meanwhile.
__attribute__((noinline)) Counter* Ring::add_counter(uint64_t key) {
  const Locked locked(&adding_);
  Counter* fresh = nullptr;
  uint32_t at = place(key);
  for (uint32_t tried = 0; tried < kReach; ++tried, at = (at + 1) & (kCounters - 1)) {
    const uint64_t there = counters_[at].key.load(std::memory_order_acquire);
    if (there == key) return &counters_[at];
    if (fresh == nullptr && (there == 0 || there == kFreed)) fresh = &counters_[at];
    if (there == 0) break;
  }
  if (fresh == nullptr) {
    header_->full.fetch_or(kCountersFull, std::memory_order_relaxed);
    return nullptr;
  }
  fresh->entered.store(0, std::memory_order_relaxed);
  fresh->finished.store(0, std::memory_order_relaxed);
  fresh->key.store(key, std::memory_order_release);
  return fresh;
}

void Ring::free_counters(uint64_t comm) {
  const Locked locked(&adding_);
  for (uint32_t at = 0; at < kCounters; ++at) {
    const uint64_t key = counters_[at].key.load(std::memory_order_relaxed);
    if (key == 0 || key == kFreed || key >> 40U != comm || (key >> 32U & 0xFFU) == kGraphs) continue;
    counters_[at].key.store(kFreed, std::memory_order_release);
  }
}

void Ring::append(Record record) {
  const uint64_t number = header_->head.fetch_add(1, std::memory_order_relaxed);
  Record* slot = &slots_[number & (header_->capacity - 1)];
  record.seq = number + 1;
  record.check = 0;
  record.check = check_of(record);
  __atomic_store_n(&slot->seq, 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  // Word by word: a thread that is lapped in the middle shares the slot with the thread that laps it.
  uint64_t words[8];
  memcpy(words, &record, sizeof(words));
  auto* there = reinterpret_cast<uint64_t*>(slot);
  for (int i = 1; i < 8; ++i) __atomic_store_n(&there[i], words[i], __ATOMIC_RELAXED);
  __atomic_store_n(&slot->seq, record.seq, __ATOMIC_RELEASE);
}

}  // namespace falcon
