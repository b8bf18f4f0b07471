#include "rank/rank.h"

#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/variables.h"
#include "sockets/hold.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace falcon {
namespace {

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

// The thread that makes the ring takes about a millisecond; the calls of other threads must not be missing from the
// count.
uint32_t settled(const std::atomic<uint32_t>& state) {
  constexpr timespec kPause{0, 200000};
  for (int i = 0; i < 250 && state.load(std::memory_order_acquire) == kTrying; ++i) nanosleep(&kPause, nullptr);
  return state.load(std::memory_order_acquire);
}

// Read at the first collective, not at load: scripts that start their own processes set RANK in them.
int32_t number(const char* name, int32_t fallback) { return name == nullptr ? fallback : read_number(name, fallback); }

struct Launched {
  int32_t rank;
  int32_t size;
  int32_t local_rank;
};

// What a launcher calls its processes. Taken whole from the first that names a rank: a process of mpirun in a batch
// script has the script's SLURM_PROCID, too, so that Slurm's come last. Null: this launcher does not tell.
struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
};
constexpr Names kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},                                            // torchrun, falcon-launch
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},  // Open MPI
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},                                     // MPICH, Intel MPI
    {"PMIX_RANK", nullptr, nullptr},                                                 // PRRTE, srun --mpi=pmix
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},                               // srun
};

Launched launched_as() {
  for (const Names& names : kLaunchers) {
    const int32_t rank = number(names.rank, -1);
    if (rank >= 0) return {rank, number(names.size, -1), number(names.local_rank, -1)};
  }
  return {-1, -1, -1};
}

// A handle that no library gives out: the entry stays, so that ids are never used twice.
const void* retired() {
  static const char kRetired = 0;
  return &kRetired;
}

uint64_t shape_of(int32_t rank, int32_t size) {
  return static_cast<uint64_t>(static_cast<uint32_t>(size)) << 32U | static_cast<uint32_t>(rank);
}

// From 1 in the order of appearance; null and what comes when the table is full are 0.
uint32_t number_of(const void* handle, std::atomic<const void*>* table, uint32_t capacity) {
  if (handle == nullptr) return 0;
  for (uint32_t index = 0; index < capacity; ++index) {
    const void* there = table[index].load(std::memory_order_acquire);
    if (there == nullptr && table[index].compare_exchange_strong(there, handle, std::memory_order_acq_rel)) {
      return index + 1;
    }
    if (there == handle) return index + 1;
  }
  return 0;
}

}  // namespace

Rank* Rank::current() {
  Page* own_page = page();
  if (own_page == nullptr) return nullptr;
  uint32_t state = own_page->state.load(std::memory_order_acquire);
  if (state == kUntried && own_page->state.compare_exchange_strong(state, kTrying, std::memory_order_acq_rel)) {
    state = own_page->rank.activate() ? kActive : kInert;
    own_page->state.store(state, std::memory_order_release);
  } else if (state == kTrying) {
    state = settled(own_page->state);
  }
  return state == kActive ? &own_page->rank : nullptr;
}

Rank* Rank::existing() {
  Page* own_page = g_page.load(std::memory_order_acquire);
  return own_page != nullptr && own_page->state.load(std::memory_order_acquire) == kActive ? &own_page->rank : nullptr;
}

bool Rank::activate() {
  char folder[PATH_MAX];
  if (!read_variable("FALCON_RING_DIR", folder, sizeof(folder)) || *folder == '\0') return false;
  refuse_in_standby("makes a communicator");
  const Launched launched = launched_as();
  const RingIdentity identity{
      static_cast<uint32_t>(getpid()),
      static_cast<uint32_t>(number("FALCON_GENERATION", 0)),
      launched.rank,
      launched.size,
      launched.local_rank,
  };
  char path[PATH_MAX];
  const int length =
      snprintf(path, sizeof(path), "%s/g%u-r%d-%u.ring", folder, identity.generation, identity.rank, identity.pid);
  if (length <= 0 || static_cast<size_t>(length) >= sizeof(path)) return false;
  char control[PATH_MAX];
  control_.map(read_variable("FALCON_CONTROL", control, sizeof(control)) ? control : nullptr);
  ring_ = Ring::create(folder, path, identity, kDefaultCapacity, ring_storage_);
  return ring_ != nullptr;
}

std::atomic<uint32_t>& Rank::hint(const void* handle) {
  const uint64_t mixed = reinterpret_cast<uintptr_t>(handle) * 0x9E3779B97F4A7C15ULL;
  return hints_[mixed >> 58U];
}

Communicator* Rank::find(const void* handle) {
  if (handle == nullptr) return nullptr;
  std::atomic<uint32_t>& guess = hint(handle);
  const uint32_t at = guess.load(std::memory_order_acquire);
  if (at != 0 && communicators_[at - 1].handle.load(std::memory_order_acquire) == handle) {
    return &communicators_[at - 1];
  }
  for (uint32_t index = 0; index < kCommunicators; ++index) {
    const void* there = communicators_[index].handle.load(std::memory_order_acquire);
    if (there == handle) {
      guess.store(index + 1, std::memory_order_release);
      return &communicators_[index];
    }
    if (there == nullptr) return nullptr;
  }
  return nullptr;
}

Communicator* Rank::introduce(const void* handle, int32_t rank, int32_t size, uint32_t parent) {
  if (handle == nullptr) return nullptr;
  Communicator* known = find(handle);
  if (known != nullptr && rank >= 0) {
    const uint64_t shape = known->shape.load(std::memory_order_acquire);
    if (shape != 0 && shape != shape_of(rank, size)) {
      retire(known);
      known = nullptr;
    }
  }
  if (known != nullptr) return known;
  Communicator* fresh = add(handle, parent);
  if (fresh != nullptr && rank >= 0) describe(fresh, rank, size);
  return fresh;
}

// A place of a communicator that is gone is used again only when there is no other: who still holds it would count
// there.
Communicator* Rank::add(const void* handle, uint32_t parent) {
  const Locked locked(&adding_);
  Communicator* fresh = nullptr;
  for (Communicator& communicator : communicators_) {
    const void* there = communicator.handle.load(std::memory_order_acquire);
    if (there == handle) return &communicator;  // another thread was faster
    if (there == nullptr || (there == retired() && fresh == nullptr)) fresh = &communicator;
    if (there == nullptr) break;
  }
  if (fresh == nullptr || fresh->handle.load(std::memory_order_relaxed) == retired()) {
    forgot_.store(true, std::memory_order_release);
  }
  if (fresh == nullptr) {
    ring_->header().full.fetch_or(kCommunicatorsFull, std::memory_order_relaxed);
    return nullptr;
  }
  fresh->id.store(++ids_, std::memory_order_relaxed);
  fresh->shape.store(0, std::memory_order_release);  // seen, `forgot_` is seen, too
  fresh->parent.store(parent, std::memory_order_relaxed);
  fresh->error.store(0, std::memory_order_relaxed);
  fresh->singles.store(0, std::memory_order_relaxed);
  fresh->singles_described.store(0, std::memory_order_relaxed);
  fresh->exchanges.store(0, std::memory_order_relaxed);
  fresh->exchanging.store(0, std::memory_order_relaxed);
  fresh->transport.store(nullptr, std::memory_order_relaxed);
  fresh->tag.store(0, std::memory_order_relaxed);
  fresh->untagged.store(0, std::memory_order_relaxed);
  fresh->calls.store(nullptr, std::memory_order_relaxed);
  fresh->handle.store(handle, std::memory_order_release);
  return fresh;
}

Communicator* Rank::with_transport(const void* transport) {
  std::atomic<uint32_t>& guess = hint(transport);
  const uint32_t likely = guess.load(std::memory_order_acquire);
  if (likely != 0 && communicators_[likely - 1].transport.load(std::memory_order_acquire) == transport) {
    return &communicators_[likely - 1];
  }
  Communicator* found = nullptr;
  for (uint32_t index = 0; (found = at(index)) != nullptr; ++index) {
    if (found->transport.load(std::memory_order_acquire) != transport) continue;
    guess.store(index + 1, std::memory_order_release);
    return found;
  }
  return nullptr;
}

void Rank::describe(Communicator* communicator, int32_t rank, int32_t size) {
  uint64_t unknown = 0;
  if (!communicator->shape.compare_exchange_strong(unknown, shape_of(rank, size), std::memory_order_acq_rel)) return;
  Record record{};
  record.t_start_ns = monotonic_ns();
  record.comm = id_of(communicator);
  record.bytes = communicator->parent.load(std::memory_order_relaxed);
  record.group = static_cast<uint32_t>(size);
  record.peer_or_root = rank;
  record.kind = Kind::kDescriptor;
  ring_->append(record);
}

void Rank::retire(Communicator* communicator) {
  if (communicator == nullptr) return;
  const void* handle = communicator->handle.load(std::memory_order_acquire);
  const uint64_t id = id_of(communicator);
  const uint64_t shape = communicator->shape.load(std::memory_order_acquire);
  Record record{};
  record.t_start_ns = monotonic_ns();
  record.comm = id;
  record.bytes = communicator->parent.load(std::memory_order_relaxed);
  record.group = static_cast<uint32_t>(shape >> 32U);
  record.peer_or_root = shape == 0 ? -1 : static_cast<int32_t>(shape & UINT32_MAX);
  record.flags = kEnded;
  record.kind = Kind::kDescriptor;
  if (handle == retired() || !communicator->handle.compare_exchange_strong(handle, retired())) return;
  communicator->transport.store(nullptr, std::memory_order_release);  // another group may get its address
  ring_->append(record);
  ring_->free_counters(id);
}

Membership Rank::join(Communicator* communicator) {
  const uint64_t id = id_of(communicator);
  Counter* counter = communicator == nullptr ? nullptr : communicator->calls.load(std::memory_order_acquire);
  if (counter == nullptr && communicator != nullptr) {
    counter = ring_->counter(counter_key(id, Traffic::kCollective, 0));
    communicator->calls.store(counter, std::memory_order_release);
  }
  if (counter == nullptr) {
    const auto number = static_cast<uint32_t>(elsewhere_.entered.fetch_add(1, std::memory_order_relaxed));
    return {0, number, {&elsewhere_, 0, 0}};
  }
  const uint64_t before = counter->entered.fetch_add(1, std::memory_order_acq_rel);
  return {id, static_cast<uint32_t>(before), {counter, counter_key(id, Traffic::kCollective, 0), before + 1}};
}

Counted Rank::count_single(Communicator* communicator, Traffic traffic, int32_t peer) {
  const uint64_t key = counter_key(id_of(communicator), traffic, peer);
  Counter* counter = communicator == nullptr ? nullptr : ring_->counter(key);
  if (counter == nullptr) return {&elsewhere_, 0, 0};
  return {counter, key, counter->entered.fetch_add(1, std::memory_order_acq_rel) + 1};
}

Membership Rank::number_single(Communicator* communicator, const Counted& counted) {
  if (counted.counter == &elsewhere_) {
    return {kPointToPoint, static_cast<uint32_t>(elsewhere_.finished.fetch_add(1, std::memory_order_relaxed)), counted};
  }
  describe_singles(communicator);
  const uint32_t number = communicator->singles.fetch_add(1, std::memory_order_relaxed);
  return {id_of(communicator) | kPointToPoint, number, counted};
}

Membership Rank::join_exchange(Communicator* communicator) {
  const uint32_t number = communicator->exchanges.fetch_add(1, std::memory_order_relaxed);
  return {id_of(communicator) | kExchange, number, {nullptr, 0, 0}};
}

// Elsewhere: `entered` numbers collectives, `finished` the other calls.
Membership Rank::join_unknown(Communicator* communicator) {
  if (communicator == nullptr) return join(communicator, Traffic::kRecv, -1);
  describe_singles(communicator);
  const uint64_t id = id_of(communicator);
  Counter* outstanding = ring_->counter(counter_key(id, Traffic::kRecvAny, 0));
  if (outstanding != nullptr) outstanding->entered.fetch_add(1, std::memory_order_acq_rel);
  const uint32_t number = communicator->singles.fetch_add(1, std::memory_order_relaxed);
  return {id | kPointToPoint, number, {&elsewhere_, 0, 0}};
}

Counter* Rank::arrived(uint64_t comm, int32_t source) {
  const uint64_t id = comm & ~kPointToPoint;
  Counter* counter = id == 0 ? nullptr : ring_->counter(counter_key(id, Traffic::kRecv, source));
  if (counter == nullptr) return &elsewhere_;
  counter->entered.fetch_add(1, std::memory_order_acq_rel);
  Counter* outstanding = ring_->counter(counter_key(id, Traffic::kRecvAny, 0));
  if (outstanding != nullptr) outstanding->finished.fetch_add(1, std::memory_order_release);
  return counter;
}

void Rank::describe_singles(Communicator* communicator) {
  if (communicator->singles_described.exchange(1, std::memory_order_relaxed) != 0) return;
  const uint64_t id = id_of(communicator);
  const uint64_t shape = communicator->shape.load(std::memory_order_acquire);
  Record record{};
  record.t_start_ns = monotonic_ns();
  record.comm = id | kPointToPoint;
  record.bytes = id;
  record.group = static_cast<uint32_t>(shape >> 32U);
  record.peer_or_root = shape == 0 ? -1 : static_cast<int32_t>(shape & UINT32_MAX);
  record.kind = Kind::kDescriptor;
  ring_->append(record);
}

Membership Rank::launch(const void* graph) {
  const uint32_t number = number_of(graph, graphs_, kStreams);
  uint64_t key = counter_key(number, Traffic::kGraph, 0);
  Counter* counter = ring_->counter(key);
  if (counter == nullptr) {
    counter = &elsewhere_;
    key = 0;
  }
  const uint64_t before = counter->entered.fetch_add(1, std::memory_order_acq_rel);
  return {number | kGraph, static_cast<uint32_t>(before), {counter, key, before + 1}};
}

uint16_t Rank::stream(const void* handle) { return static_cast<uint16_t>(number_of(handle, streams_, kStreams)); }

}  // namespace falcon
