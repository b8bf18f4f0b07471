// NCCL's groups: the calls inside a group start when the outermost group ends, and are timed there.
#include "nccl_communicators.h"

namespace falcon::nccl {
namespace {

constexpr uint32_t kStreamsOfGroup = 8;

// One pair of events per stream around the end of the outermost group: that is what starts its calls.
template <typename Call>
Result end_group(Call call) {
  Thread& thread = t_thread;
  Rank* rank = thread.sample ? Rank::current() : nullptr;
  const void* streams[kStreamsOfGroup];
  Sample* samples[kStreamsOfGroup];
  uint32_t count = 0;
  for (uint32_t i = 0; rank != nullptr && i < thread.calls; ++i) {
    uint32_t known = 0;
    while (known < count && streams[known] != thread.call[i].stream) ++known;
    if (known < count || count == kStreamsOfGroup) continue;
    streams[count] = thread.call[i].stream;
    samples[count] = begin_sample(rank, streams[count]);
    ++count;
  }
  const Result result = inside(call);
  for (uint32_t i = 0; i < count; ++i) {
    if (samples[i] == nullptr) continue;
    Timed timed[kTimedCalls];
    uint32_t of_stream = 0;
    for (uint32_t j = 0; accepted(result) && j < thread.calls; ++j) {
      if (thread.call[j].stream == streams[i]) timed[of_stream++] = thread.call[j].timed;
    }
    end_sample(samples[i], streams[i], timed, of_stream);
  }
  return result;
}

}  // namespace
}  // namespace falcon::nccl

using falcon::Rank;
using falcon::nccl::inside;
using falcon::nccl::Result;
using falcon::nccl::t_thread;

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
FALCON_HOOK ncclGroupStart() {
  FALCON_REAL(ncclGroupStart);
  falcon::nccl::Thread& thread = t_thread;
  if (thread.inside) return real();
  if (thread.depth == 0) {
    const int error = errno;
    Rank* rank = Rank::existing();
    if (rank != nullptr) {
      rank->pass_gate();
      thread.group = rank->next_group();
    }
    errno = error;
  }
  const Result result = inside([&] { return real(); });
  if (falcon::nccl::accepted(result)) ++thread.depth;
  return result;
}

FALCON_HOOK ncclGroupEnd() {
  FALCON_REAL(ncclGroupEnd);
  falcon::nccl::Thread& thread = t_thread;
  if (thread.inside || thread.depth == 0) return real();
  if (--thread.depth > 0) return inside([&] { return real(); });
  const Result result = falcon::nccl::end_group([&] { return real(); });
  const int after = errno;
  for (uint32_t i = 0; i < thread.pendings && falcon::nccl::accepted(result); ++i) {
    falcon::nccl::add(thread.pending[i]);
  }
  thread.pendings = 0;
  thread.calls = 0;
  thread.sample = false;
  errno = after;
  return result;
}

// A simulated end ends the group without running it.
FALCON_HOOK ncclGroupSimulateEnd(void* info) {
  FALCON_REAL(ncclGroupSimulateEnd);
  falcon::nccl::Thread& thread = t_thread;
  if (!thread.inside && thread.depth > 0) --thread.depth;
  if (!thread.inside && thread.depth == 0) {
    thread.pendings = 0;
    thread.calls = 0;
    thread.sample = false;
  }
  return inside([&] { return real(info); });
}
// NOLINTEND(readability-identifier-naming)
