#include "rank.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace falcon {
namespace {

constexpr uint64_t kControlMagic = 0x4C525443434C4146;  // "FALCCTRL", little endian
constexpr uint32_t kControlVersion = 1;
constexpr size_t kControlBytes = 4096;
constexpr uint32_t kModeOff = 0;

enum State : uint32_t { kUntried = 0, kTrying = 1, kActive = 2, kInert = 3 };

// Everything of a rank lies in pages that a fork wipes: a forked data loader starts as kUntried, without a ring.
struct Page {
  std::atomic<uint32_t> state;
  Rank rank;
};

std::atomic<Page*> g_page{nullptr};

// Mapped at the first collective: a process that makes none is left as it was.
Page* page() {
  Page* known = g_page.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  void* mapped = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* fresh = static_cast<Page*>(mapped);
  if (madvise(mapped, sizeof(Page), MADV_WIPEONFORK) == 0 &&
      g_page.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) {
    return fresh;
  }
  munmap(mapped, sizeof(Page));
  return known;  // another thread's, or null where the kernel cannot wipe
}

// The thread that makes the ring takes about a millisecond; the others' calls must not be missing from the count.
uint32_t settled(const std::atomic<uint32_t>& state) {
  constexpr timespec kPause{0, 200000};
  for (int i = 0; i < 250 && state.load(std::memory_order_acquire) == kTrying; ++i) nanosleep(&kPause, nullptr);
  return state.load(std::memory_order_acquire);
}

int32_t number(const char* name, int32_t fallback) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const long value = strtol(text, &end, 10);
  return *end == '\0' && value >= 0 && value <= INT32_MAX ? static_cast<int32_t>(value) : fallback;
}

const std::atomic<uint32_t>* map_mode() {
  const char* path = getenv("FALCON_CONTROL");
  if (path == nullptr) return nullptr;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat about{};
  void* mapped = MAP_FAILED;
  if (fstat(file, &about) == 0 && about.st_size >= static_cast<off_t>(kControlBytes)) {
    mapped = mmap(nullptr, kControlBytes, PROT_READ, MAP_SHARED, file, 0);
  }
  close(file);
  if (mapped == MAP_FAILED) return nullptr;
  const auto* bytes = static_cast<const char*>(mapped);
  if (*reinterpret_cast<const uint64_t*>(bytes) != kControlMagic ||
      *reinterpret_cast<const uint32_t*>(bytes + 8) != kControlVersion) {
    munmap(mapped, kControlBytes);
    return nullptr;
  }
  return reinterpret_cast<const std::atomic<uint32_t>*>(bytes + 12);
}

}  // namespace

Rank* Rank::current() {
  Page* mine = page();
  if (mine == nullptr) return nullptr;
  uint32_t state = mine->state.load(std::memory_order_acquire);
  if (state == kUntried && mine->state.compare_exchange_strong(state, kTrying, std::memory_order_acq_rel)) {
    state = mine->rank.activate() ? kActive : kInert;
    mine->state.store(state, std::memory_order_release);
  } else if (state == kTrying) {
    state = settled(mine->state);
  }
  return state == kActive && mine->rank.recording() ? &mine->rank : nullptr;
}

bool Rank::activate() {
  const char* folder = getenv("FALCON_RING_DIR");
  if (folder == nullptr || *folder == '\0') return false;
  const RingIdentity identity{
      static_cast<uint32_t>(getpid()),
      static_cast<uint32_t>(number("FALCON_GENERATION", 0)),
      number("RANK", -1),
      number("WORLD_SIZE", -1),
      number("LOCAL_RANK", -1),
  };
  char path[4096];
  const int length =
      snprintf(path, sizeof(path), "%s/g%u-r%d-%u.ring", folder, identity.generation, identity.rank, identity.pid);
  if (length <= 0 || static_cast<size_t>(length) >= sizeof(path)) return false;
  mode_ = map_mode();
  ring_ = Ring::create(folder, path, identity, kDefaultCapacity, ring_storage_);
  return ring_ != nullptr;
}

bool Rank::recording() const { return mode_ == nullptr || mode_->load(std::memory_order_relaxed) != kModeOff; }

Membership Rank::join(const void* handle, int32_t rank, int32_t size) {
  if (handle == nullptr) return {0, calls_elsewhere_.fetch_add(1, std::memory_order_relaxed)};
  const uint64_t shape = static_cast<uint64_t>(static_cast<uint32_t>(size)) << 32U | static_cast<uint32_t>(rank);
  Communicator* found = nullptr;
  uint32_t index = 0;
  // The newest with this handle counts: an address that was freed may be used again.
  for (; index < kCommunicators; ++index) {
    const void* there = communicators_[index].handle.load(std::memory_order_acquire);
    if (there == handle) found = &communicators_[index];
    if (there == nullptr) {
      const uint64_t known = found == nullptr ? ~shape : found->shape.load(std::memory_order_acquire);
      if (known == shape || known == 0) break;
      if (communicators_[index].handle.compare_exchange_strong(there, handle, std::memory_order_acq_rel)) {
        found = &communicators_[index];
        found->shape.store(shape, std::memory_order_release);
        describe(index, rank, size);
        break;
      }
      if (there == handle) found = &communicators_[index];  // another thread was faster
    }
  }
  if (found == nullptr) return {0, calls_elsewhere_.fetch_add(1, std::memory_order_relaxed)};
  return {static_cast<uint64_t>(found - communicators_) + 1, found->calls.fetch_add(1, std::memory_order_relaxed)};
}

void Rank::describe(uint32_t index, int32_t rank, int32_t size) {
  Record record{};
  record.t_start_ns = monotonic_ns();
  record.comm = index + 1;
  record.group = static_cast<uint32_t>(size);
  record.peer_or_root = rank;
  record.kind = Kind::kDescriptor;
  ring_->append(record);
}

}  // namespace falcon
