// A launch of a CUDA graph, interposed: the collectives that were captured into it run now, and only this call says so.

#include <errno.h>

#include <atomic>

#include "common/symbols.h"
#include "cuda/device.h"
#include "rank/rank.h"

// NOLINTNEXTLINE(readability-identifier-naming): CUDA's name
extern "C" __attribute__((visibility("default"))) int cudaGraphLaunch(void* graph, void* stream) {
  constexpr int kInitializationError = 3;  // cudaErrorInitializationError
  static std::atomic<void*> cache{nullptr};
  void* found = cache.load(std::memory_order_acquire);
  const int error = errno;
  if (found == nullptr) {
    found = falcon::resolve_original("cudaGraphLaunch");
    cache.store(found, std::memory_order_release);
  }
  errno = error;
  if (found == nullptr) return kInitializationError;
  const auto real = reinterpret_cast<int (*)(void*, void*)>(found);
  // A process becomes a rank by a communicator, not by a graph.
  falcon::Rank* rank = falcon::Rank::existing();
  if (rank == nullptr) return real(graph, stream);
  rank->pass_gate();
  const falcon::Membership member = rank->launch(graph);
  falcon::Record record{};
  record.t_start_ns = falcon::monotonic_ns();
  record.comm = member.id;
  record.comm_seq = member.call;
  record.peer_or_root = -1;
  record.stream = rank->stream(stream);
  record.kind = falcon::Kind::kGraphLaunch;
  falcon::Sample* sample = rank->sampled() ? falcon::begin_sample(rank, stream) : nullptr;
  errno = error;
  const int result = real(graph, stream);
  const int after = errno;
  if (result != 0) record.flags = falcon::kFailed;
  if (rank->recording()) rank->ring().append(record);
  const falcon::Timed timed{record, member.counted};
  if (sample != nullptr) falcon::end_sample(sample, stream, &timed, result == 0 ? 1 : 0);
  errno = after;
  return result;
}
