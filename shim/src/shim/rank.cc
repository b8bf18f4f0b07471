#include "rank.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

Page* map_page() {
  void* mapped = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (madvise(mapped, sizeof(Page), MADV_WIPEONFORK) != 0) {
    munmap(mapped, sizeof(Page));
    return nullptr;
  }
  return static_cast<Page*>(mapped);
}

Page* const g_page = map_page();

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
  if (g_page == nullptr) return nullptr;
  uint32_t state = g_page->state.load(std::memory_order_acquire);
  if (state == kUntried) {
    // Another thread's first call at the same moment passes unrecorded: it must not wait for us.
    if (!g_page->state.compare_exchange_strong(state, kTrying, std::memory_order_acq_rel)) return nullptr;
    const int error = errno;
    state = g_page->rank.activate() ? kActive : kInert;
    errno = error;
    g_page->state.store(state, std::memory_order_release);
  }
  return state == kActive && g_page->rank.recording() ? &g_page->rank : nullptr;
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

Communicator* Rank::communicator(const void* handle, int32_t rank, int32_t size) {
  const uint32_t known = count_.load(std::memory_order_acquire);
  const uint32_t filled = known < kCommunicators ? known : kCommunicators;
  // Newest first: an address that was freed and used again belongs to the newest communicator of that shape.
  for (uint32_t i = filled; i-- > 0;) {
    Communicator& entry = communicators_[i];
    if (entry.handle.load(std::memory_order_acquire) == handle && entry.rank == rank && entry.size == size) {
      return &entry;
    }
  }
  const uint32_t index = count_.fetch_add(1, std::memory_order_acq_rel);
  if (index >= kCommunicators) {
    count_.store(kCommunicators, std::memory_order_release);
    return nullptr;
  }
  Communicator& entry = communicators_[index];
  entry.id = index + 1;
  entry.rank = rank;
  entry.size = size;
  entry.handle.store(handle, std::memory_order_release);
  Record record{};
  record.t_start_ns = monotonic_ns();
  record.comm = entry.id;
  record.group = size < 0 ? 0 : static_cast<uint32_t>(size);
  record.peer_or_root = rank;
  record.kind = Kind::kDescriptor;
  ring_->append(record);
  return &entry;
}

}  // namespace falcon
