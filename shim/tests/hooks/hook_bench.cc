// hook_bench CALLS FOLDER: what one interposed collective costs. Prints nanoseconds as JSON: the median and the tenth
// and ninetieth percentile over blocks of calls, of the whole call, of the ring's parts alone, and of what NCCL
// reports of one untimed collective through its profiler interface (v5). Whether the shim is there is the caller's
// LD_PRELOAD.
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/ring.h"
#include "nccl/profiler_api.h"
#include "standins/standin_gloo.h"

namespace {

using falcon::nccl::CollApi;
using falcon::nccl::CollV4;
using falcon::nccl::Descriptor;
using falcon::nccl::GroupApi;
using falcon::nccl::InitV5;
using falcon::nccl::Profiler;

// What NCCL reports of one collective: its own group around it, the call, and that it goes to the device.
struct Plugin {
  const Profiler<InitV5>* table;
  void* context;
  Descriptor<GroupApi> group;
  Descriptor<CollApi> api;
  Descriptor<CollV4> task;

  void tell() {
    void* handle = nullptr;
    void* of_task = nullptr;
    table->start(context, &handle, &group);
    table->start(context, &handle, &api);
    table->start(context, &of_task, &task);
    table->stop(of_task);
    table->stop(handle);
  }
};

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
  std::vector<float> values(1000);
  gloo::StandinBuffer buffer{nullptr, values.data(), values.size() * sizeof(float)};
  gloo::AllreduceOptions options = gloo::options(context, &buffer, sizeof(float), 0);
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
  measure("call", calls, ", ", [&] {
    ++options.tag;
    gloo::allreduce(options);
  });
  measure("clock", calls, ", ", [] { falcon::monotonic_ns(); });
  measure("check", calls, ", ", [&] {
    record.seq++;
    sink += falcon::check_of(record);
  });
  measure("append", calls, ", ", [&] { ring->append(record); });
  Plugin plugin{};
  plugin.table = static_cast<const Profiler<InitV5>*>(dlsym(RTLD_DEFAULT, "ncclProfiler_v5"));
  if (plugin.table != nullptr) {
    int mask = 0;
    plugin.table->init(&plugin.context, 1, &mask, nullptr, 1, 8, 0, nullptr);
    plugin.group = {{falcon::nccl::kGroupApiEvent, nullptr, 0}, {false, 1}};
    plugin.api = {{falcon::nccl::kCollApiEvent, nullptr, 0}, {"AllReduce", 1000, "ncclFloat32", 0, &mask, false}};
    plugin.task = {{falcon::nccl::kCollEvent, nullptr, 0}, {}};
    measure("plugin", calls, ", ", [&] { plugin.tell(); });
  }
  printf("\"sink\": %u}\n", sink);
  unlink(path);
  return 0;
}
