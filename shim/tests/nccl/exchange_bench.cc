// exchange_bench ITERATIONS: what a mixture of 64 experts' all-to-alls of unequal parts cost on the host, bare and
// through the shim, in turns: each iteration 768 groups of 64 sends and 64 receives. Prints nanoseconds an iteration as
// JSON, and the calls in it. NCCL is a stand-in, so that the difference is the shim's own part. LD_PRELOAD,
// FALCON_RING_DIR and FALCON_CONTROL are the caller's.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/own_rank.h"
#include "nccl/nccl_places.h"
#include "standins/standin_nccl.h"

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): NCCL's names
int pncclSend(const void*, size_t, int, int, void*, void*);
int pncclRecv(void*, size_t, int, int, void*, void*);
int pncclGroupStart();
int pncclGroupEnd();
// NOLINTEND(readability-identifier-naming)
}

namespace {

constexpr int kExperts = 64;
constexpr int kGroups = 768;

size_t part(int group, int peer) { return static_cast<size_t>(group * 7 + peer * 13) % 1000 + 1; }

void hooked() {
  for (int group = 0; group < kGroups; ++group) {
    ncclGroupStart();
    for (int peer = 0; peer < kExperts; ++peer) {
      ncclSend(kSend, part(group, peer), kBfloat16, peer, kComm, kStream);
      ncclRecv(kRecv, part(group, peer), kBfloat16, peer, kComm, kStream);
    }
    ncclGroupEnd();
  }
}

void bare() {
  for (int group = 0; group < kGroups; ++group) {
    pncclGroupStart();
    for (int peer = 0; peer < kExperts; ++peer) {
      pncclSend(kSend, part(group, peer), kBfloat16, peer, kComm, kStream);
      pncclRecv(kRecv, part(group, peer), kBfloat16, peer, kComm, kStream);
    }
    pncclGroupEnd();
  }
}

double taken(void (*iteration)()) {
  const uint64_t start = falcon::monotonic_ns();
  iteration();
  return static_cast<double>(falcon::monotonic_ns() - start);
}

double median(std::vector<double>* values) {
  std::sort(values->begin(), values->end());
  return (*values)[values->size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = make_places();
  if (argc != 2 || folder.empty()) return 64;
  void* comm = nullptr;
  standin_made = kComm;
  ncclCommInitRank(&comm, kExperts, StandinUniqueId{}, 2);
  if (rings(folder).empty()) return 65;  // no shim
  g_ring = view(rings(folder)[0]);
  hooked();
  const uint64_t before = head();
  std::vector<double> without;
  std::vector<double> with;
  const long iterations = std::max(1L, strtol(argv[1], nullptr, 10));
  for (long i = 0; i < iterations; ++i) {
    without.push_back(taken(bare));
    with.push_back(taken(hooked));
  }
  printf("{\"calls\": %d, \"records\": %.1f, \"bare_ns\": %.0f, \"hooked_ns\": %.0f}\n", 2 * kExperts * kGroups,
         static_cast<double>(head() - before) / static_cast<double>(iterations), median(&without), median(&with));
  remove_rings(folder);
  return 0;
}
