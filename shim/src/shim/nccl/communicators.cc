// A communicator's life: made, split, ended, failed on its own.
#include "nccl/communicators.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "nccl/retry.h"

namespace falcon::nccl {
namespace {

// The communicators that are being made while their calls have returned (their configuration says: not blocking). NCCL
// itself keeps the address of each handle until it is written.
constexpr uint32_t kDeferred = 64;
Lock g_deferring;
Pending g_deferred[kDeferred];
std::atomic<uint32_t> g_deferrals{0};  // of the places, those in use: the first

void defer(const Pending& made) {
  const Locked locked(&g_deferring);
  const uint32_t count = g_deferrals.load(std::memory_order_relaxed);
  if (count == kDeferred) return;  // it is introduced by its first call, without its parent
  g_deferred[count] = made;
  g_deferrals.store(count + 1, std::memory_order_release);
}

// Reads a handle whose place may be gone: a program is free to move it once NCCL has written it.
Comm read_handle(const Comm* place) {
  Comm found = nullptr;
  const iovec into{&found, sizeof(found)};
  const iovec from{const_cast<Comm*>(place), sizeof(found)};  // NOLINT(cppcoreguidelines-pro-type-const-cast): is read
  return syscall(SYS_process_vm_readv, getpid(), &into, 1UL, &from, 1UL, 0UL) == sizeof(found) ? found : nullptr;
}

// Takes one of those that `fits`. False: there is none.
template <typename Fits>
bool take_deferred(Fits fits, Pending* made) {
  if (g_deferrals.load(std::memory_order_acquire) == 0) return false;
  const Locked locked(&g_deferring);
  const uint32_t count = g_deferrals.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (!fits(g_deferred[i])) continue;
    *made = g_deferred[i];
    g_deferred[i] = g_deferred[count - 1];
    g_deferrals.store(count - 1, std::memory_order_release);
    return true;
  }
  return false;
}

// Asks the library for rank and size, if the communicator is ready: another would answer by a warning. Otherwise it is
// asked again at the next call.
void complete(Rank* rank, Communicator* communicator, Comm comm) {
  using Ask = Result (*)(Comm, int*);
  static std::atomic<void*> cache_state{nullptr};
  static std::atomic<void*> cache_rank{nullptr};
  static std::atomic<void*> cache_size{nullptr};
  const auto ask_state = real<Ask>(cache_state, "ncclCommGetAsyncError");
  Result state = kSuccess;
  if (ask_state != nullptr && (ask_state(comm, &state) != kSuccess || state != kSuccess)) return;
  const auto ask_rank = real<Ask>(cache_rank, "ncclCommUserRank");
  const auto ask_size = real<Ask>(cache_size, "ncclCommCount");
  int own_rank = -1;
  int size = 0;
  const bool known = ask_rank != nullptr && ask_size != nullptr && ask_rank(comm, &own_rank) == kSuccess &&
                     ask_size(comm, &size) == kSuccess;
  if (known && own_rank >= 0 && own_rank < size) rank->describe(communicator, own_rank, size);
}

// A call that makes a communicator. `root`: the unique id of its one root; null: the call is not tried again.
template <typename Call>
Result create(Pending made, Call call, const UniqueId* root = nullptr) {
  Thread& thread = t_thread;
  if (thread.inside) return call();
  const int error = errno;
  Rank* rank = Rank::existing();
  if (rank != nullptr && thread.depth == 0) rank->pass_gate();
  Tries tries(thread.depth == 0 ? root : nullptr);
  made.making = begin_making(made.size, made.rank, made.others + 1);
  errno = error;
  Result result = inside(call);
  int after = errno;
  while (!accepted(result) && tries.again(result, made.rank)) {
    result = inside(call);
    after = errno;
  }
  if (accepted(result) && thread.room != nullptr && thread.pendings < kPending) {
    thread.room->pending[thread.pendings++] = made;
  } else {
    settle(made, result);
  }
  errno = after;
  return result;
}

// A communicator ends, and with it what it would have reported.
void leave(Comm comm) {
  Rank* rank = Rank::existing();
  if (rank == nullptr || t_thread.inside) return;
  Pending unmade{};
  while (take_deferred([&](const Pending& each) { return each.told_by == comm; }, &unmade)) end_making(unmade.making);
  rank->retire(rank->find(comm));
}

// The communicator was asked for its state, and told this one. Where it succeeded, NCCL may still have to write the
// handles of those that were split from it: these are known once they are asked or used themselves.
void told(Comm comm, Result state) {
  if (state == kInProgress || Rank::existing() == nullptr) return;
  const int error = errno;
  Pending made{};
  const auto done = [&](const Pending& each) {
    return each.told_by == comm && (state != kSuccess || read_handle(each.handle) != nullptr);
  };
  while (take_deferred(done, &made)) {
    end_making(made.making);
    if (state == kSuccess) add(made);
  }
  errno = error;
}

// Adds a new communicator with its parent, where a split that was deferred has made it.
Communicator* made_by_split(Rank* rank, Comm comm) {
  Pending made{};
  if (!take_deferred([&](const Pending& each) { return read_handle(each.handle) == comm; }, &made)) return nullptr;
  end_making(made.making);
  return rank->introduce(comm, made.rank, made.size, made.parent);
}

uint32_t id_of(Comm comm) {
  Rank* rank = Rank::existing();
  return rank == nullptr ? 0 : static_cast<uint32_t>(rank->id_of(rank->find(comm)));
}

}  // namespace

Communicator* meet(Rank* rank, Comm comm) {
  Communicator* communicator = rank->find(comm);
  if (communicator == nullptr) communicator = made_by_split(rank, comm);
  if (communicator == nullptr) communicator = rank->introduce(comm, -1, 0, 0);
  if (communicator != nullptr && communicator->shape.load(std::memory_order_acquire) == 0) {
    complete(rank, communicator, comm);
  }
  return communicator;
}

void add(const Pending& made) {
  Rank* rank = Rank::current();
  if (rank == nullptr || *made.handle == nullptr) return;
  Communicator* stale = rank->find(*made.handle);
  if (stale != nullptr) rank->retire(stale);  // destroyed by a call that we did not see
  Communicator* communicator = rank->introduce(*made.handle, made.rank, made.size, made.parent);
  if (communicator != nullptr && made.rank < 0) complete(rank, communicator, *made.handle);
}

void settle(const Pending& made, Result answer) {
  if (answer != kInProgress) end_making(made.making);
  if (!accepted(answer)) return;
  const bool there = *made.handle != nullptr && made.rank >= 0;
  if (answer == kSuccess || there) {
    add(made);
    return;
  }
  Pending later = made;
  if (later.told_by == nullptr) later.told_by = *made.handle;
  if (later.told_by != nullptr) defer(later);
}

}  // namespace falcon::nccl

using falcon::Communicator;
using falcon::Rank;
using falcon::nccl::Comm;
using falcon::nccl::Config;
using falcon::nccl::create;
using falcon::nccl::inside;
using falcon::nccl::Result;
using falcon::nccl::t_thread;
using falcon::nccl::UniqueId;

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
FALCON_HOOK ncclCommInitRank(Comm* comm, int size, UniqueId id, int rank) {
  FALCON_REAL(ncclCommInitRank);
  return create({comm, rank, size, 0, nullptr, 0, 0}, [&] { return real(comm, size, id, rank); }, &id);
}

FALCON_HOOK ncclCommInitRankConfig(Comm* comm, int size, UniqueId id, int rank, Config* config) {
  FALCON_REAL(ncclCommInitRankConfig);
  return create({comm, rank, size, 0, nullptr, 0, 0}, [&] { return real(comm, size, id, rank, config); }, &id);
}

// With several roots a rank may have reached one of them when it fails to reach the next.
FALCON_HOOK ncclCommInitRankScalable(Comm* comm, int size, int rank, int ids, UniqueId* id, Config* config) {
  FALCON_REAL(ncclCommInitRankScalable);
  return create(
      {comm, rank, size, 0, nullptr, 0, 0}, [&] { return real(comm, size, rank, ids, id, config); },
      ids == 1 ? id : nullptr);
}

// One process, several devices: each is a communicator of its own.
FALCON_HOOK ncclCommInitAll(Comm* comms, int devices, const int* list) {
  FALCON_REAL(ncclCommInitAll);
  const Result result = create({comms, 0, devices, 0, nullptr, devices > 0 ? static_cast<uint32_t>(devices - 1) : 0, 0},
                               [&] { return real(comms, devices, list); });
  for (int device = 1; falcon::nccl::accepted(result) && device < devices && t_thread.depth == 0; ++device) {
    falcon::nccl::add({&comms[device], device, devices, 0, nullptr, 0, 0});
  }
  return result;
}

FALCON_HOOK ncclCommSplit(Comm comm, int color, int key, Comm* made, Config* config) {
  FALCON_REAL(ncclCommSplit);
  const Comm told_by = color < 0 ? nullptr : comm;  // without a colour nothing is made that could be told of
  return create({made, -1, 0, falcon::nccl::id_of(comm), told_by, 0, 0},
                [&] { return real(comm, color, key, made, config); });
}

FALCON_HOOK ncclCommShrink(Comm comm, int* excluded, int count, Comm* made, Config* config, int flags) {
  FALCON_REAL(ncclCommShrink);
  return create({made, -1, 0, falcon::nccl::id_of(comm), comm, 0, 0},
                [&] { return real(comm, excluded, count, made, config, flags); });
}

FALCON_HOOK ncclCommGrow(Comm comm, int size, const UniqueId* id, int rank, Comm* made, Config* config) {
  FALCON_REAL(ncclCommGrow);
  return create({made, -1, 0, falcon::nccl::id_of(comm), comm, 0, 0},
                [&] { return real(comm, size, id, rank, made, config); });
}

FALCON_HOOK ncclCommFinalize(Comm comm) {
  FALCON_REAL(ncclCommFinalize);
  return inside([&] { return real(comm); });
}

// Both end a communicator; its address may be another's before the call returns.
FALCON_HOOK ncclCommDestroy(Comm comm) {
  FALCON_REAL(ncclCommDestroy);
  falcon::nccl::leave(comm);
  return inside([&] { return real(comm); });
}

FALCON_HOOK ncclCommAbort(Comm comm) {
  FALCON_REAL(ncclCommAbort);
  falcon::nccl::leave(comm);
  return inside([&] { return real(comm); });
}

FALCON_HOOK ncclCommGetAsyncError(Comm comm, Result* error) {
  FALCON_REAL(ncclCommGetAsyncError);
  const Result result = real(comm, error);
  if (result != falcon::nccl::kSuccess || error == nullptr) return result;
  falcon::nccl::told(comm, *error);
  if (falcon::nccl::accepted(*error)) return result;
  Rank* rank = Rank::current();
  Communicator* communicator = rank == nullptr ? nullptr : rank->find(comm);
  const auto code = static_cast<uint32_t>(*error);
  if (communicator == nullptr || !rank->recording()) return result;
  if (communicator->error.exchange(code) == code) return result;  // polled many times
  falcon::Record record{};
  record.t_start_ns = falcon::monotonic_ns();
  record.comm = rank->id_of(communicator);
  record.bytes = code;
  record.peer_or_root = -1;
  record.flags = falcon::kFailed;
  record.kind = falcon::Kind::kAsyncError;
  rank->ring().append(record);
  return result;
}
// NOLINTEND(readability-identifier-naming)
