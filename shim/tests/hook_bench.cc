// hook_bench CALLS: what one interposed collective costs. Prints nanoseconds as JSON: the median and the tenth and
// ninetieth percentile over blocks of calls, once without and once with the ring's parts measured alone. Whether the
// shim is there is the caller's LD_PRELOAD.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ring.h"
#include "standin_gloo.h"

namespace {

constexpr int kBlock = 500;

// Percentiles of the time of one `work()`, in ns, over blocks of kBlock.
template <typename Work>
void measure(const char* name, long calls, const char* end, Work work) {
  std::vector<double> blocks;
  for (long done = 0; done < calls; done += kBlock) {
    const uint64_t start = falcon::monotonic_ns();
    for (int i = 0; i < kBlock; ++i) work();
    blocks.push_back(static_cast<double>(falcon::monotonic_ns() - start) / kBlock);
  }
  std::sort(blocks.begin(), blocks.end());
  const size_t count = blocks.size();
  printf("\"%s\": {\"p10_ns\": %.2f, \"p50_ns\": %.2f, \"p90_ns\": %.2f}%s", name, blocks[count / 10],
         blocks[count / 2], blocks[count * 9 / 10], end);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const long calls = strtol(argv[1], nullptr, 10);
  const gloo::StandinContext context{0, 8, 2};
  const gloo::AllreduceOptions options{&context, {}, 1000, 4};
  alignas(falcon::Ring) static char storage[sizeof(falcon::Ring)];
  char path[4096];
  snprintf(path, sizeof(path), "%s/parts-%d.ring", argv[2], static_cast<int>(getpid()));
  falcon::Ring* ring = falcon::Ring::create(argv[2], path, {static_cast<uint32_t>(getpid()), 0, 0, 8, 0},
                                            falcon::kDefaultCapacity, storage);
  if (ring == nullptr) return 1;
  falcon::Record record{};
  uint32_t sink = 0;
  printf("{");
  gloo::allreduce(options);
  measure("call", calls, ", ", [&] { gloo::allreduce(options); });
  measure("clock", calls, ", ", [] { falcon::monotonic_ns(); });
  measure("check", calls, ", ", [&] {
    record.seq++;
    sink += falcon::check_of(record);
  });
  measure("append", calls, ", ", [&] { ring->append(record); });
  printf("\"sink\": %u}\n", sink);
  unlink(path);
  return 0;
}
