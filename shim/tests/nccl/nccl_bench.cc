// nccl_bench BURSTS: what one interposed NCCL call costs on the host, mode by mode, and what the helper thread that
// polls events costs. Prints nanoseconds as JSON. NCCL and CUDA are stand-ins: their event calls cost nearly nothing,
// so that these are the shim's own parts. LD_PRELOAD, FALCON_RING_DIR and FALCON_CONTROL are the caller's.
//
// The modes take turns, burst by burst, with the bare call among them; a pause after each lets the helper give the
// events back, as a job's computation does. A burst begins with calls that are not timed: caches are warm.
#include <dlfcn.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "common/own_rank.h"
#include "nccl/nccl_places.h"
#include "standins/standin_nccl.h"

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): NCCL's and CUDA's names
int pncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int cuEventRecord(void*, void*);
int cuEventQuery(void*);
int cuStreamIsCapturing(void*, int*);
int cuCtxGetCurrent(void**);
// NOLINTEND(readability-identifier-naming)
}

namespace {

using falcon::Mode;

constexpr int kBurst = 64;
constexpr int kGroup = 8;
constexpr int kBusyBurst = 512;  // for the helper: so many that their cost shows beside that of the polls
constexpr int kPairs = 16384;    // of events, the shim's pool
constexpr std::chrono::milliseconds kPause{2};
constexpr double kShareSeconds = 1;

double per(uint64_t start, int count) { return static_cast<double>(falcon::monotonic_ns() - start) / count; }

void bare() { pncclAllReduce(kSend, kRecv, 1000, kFloat32, 0, kComm, kStream); }
void call() { ncclAllReduce(kSend, kRecv, 1000, kFloat32, 0, kComm, kStream); }
void group() {
  ncclGroupStart();
  for (int i = 0; i < kGroup; ++i) call();
  ncclGroupEnd();
}

struct Case {
  const char* name;
  void (*work)();
  int calls;  // of NCCL, in one `work`
  Mode mode;
  uint32_t sample_every;  // with a cycle of one call; so many that none comes, or each
  std::vector<double> bursts;
};

constexpr uint32_t kNone = 0x7FFFFFFF;

void obey(Mode mode, uint32_t sample_every) {
  control().cycle_calls = 1;
  control().sample_every = sample_every;
  set_mode(mode);
}

void run(Case* measured) {
  obey(measured->mode, measured->sample_every);
  const int works = kBurst / measured->calls;
  for (int i = 0; i < works; ++i) measured->work();
  const uint64_t start = falcon::monotonic_ns();
  for (int i = 0; i < works; ++i) measured->work();
  measured->bursts.push_back(per(start, kBurst));
  std::this_thread::sleep_for(kPause);
}

// Makes the helper fill its pool, by calls that the device does not finish.
void fill_pool() {
  obey(Mode::kProfile, 0);
  __atomic_store_n(&standin_device_done, false, __ATOMIC_RELEASE);
  for (int i = 0; i < 1000; ++i) {
    for (int j = 0; j < kPairs / 256; ++j) call();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void device_is_done() {
  __atomic_store_n(&standin_device_done, true, __ATOMIC_RELEASE);
  std::this_thread::sleep_for(10 * kPause);
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}
double cpu_seconds(int whose) {
  rusage used{};
  getrusage(whose, &used);
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}
// Of every thread but this thread: the helper.
double helper_seconds() { return cpu_seconds(RUSAGE_SELF) - cpu_seconds(RUSAGE_THREAD); }

struct Share {
  double cpu;  // of a core
  uint64_t completed;
  double seconds;
};

// The helper's CPU while, every kPause, a burst of calls is made (none: 0).
Share helper_share(int burst) {
  std::this_thread::sleep_for(20 * kPause);
  const uint64_t before = head();
  const uint64_t start = falcon::monotonic_ns();
  const double cpu = helper_seconds();
  uint64_t calls = 0;
  while (per(start, 1) < kShareSeconds * 1e9) {
    for (int i = 0; i < burst; ++i) call();
    calls += static_cast<uint64_t>(burst);
    std::this_thread::sleep_for(kPause);
  }
  std::this_thread::sleep_for(kPause);
  const double wall = per(start, 1) / 1e9;
  return {(helper_seconds() - cpu) / wall, head() - before - calls, wall};
}

void print(const char* name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t count = values.size();
  printf("\"%s\": {\"p10_ns\": %.2f, \"p50_ns\": %.2f, \"p90_ns\": %.2f}, ", name, values[count / 10],
         values[count / 2], values[count * 9 / 10]);
}

template <typename Work>
void part(const char* name, int bursts, Work work) {
  std::vector<double> taken;
  for (int burst = 0; burst < bursts; ++burst) {
    const uint64_t start = falcon::monotonic_ns();
    for (int i = 0; i < kBurst; ++i) work();
    taken.push_back(per(start, kBurst));
  }
  print(name, taken);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = make_places();
  if (argc != 2 || folder.empty()) return 64;
  const int bursts = static_cast<int>(strtol(argv[1], nullptr, 10));
  void* comm = nullptr;
  standin_made = kComm;
  ncclCommInitRank(&comm, 4, StandinUniqueId{}, 2);
  if (rings(folder).empty()) return 65;  // no shim
  g_ring = view(rings(folder)[0]);
  printf("{");
  fill_pool();
  std::vector<Case> exhausted{{"exhausted", call, 1, Mode::kProfile, 0, {}}};
  for (int i = 0; i < bursts / 4; ++i) run(exhausted.data());
  device_is_done();
  std::vector<Case> cases{
      {"bare", bare, 1, Mode::kTrack, kNone, {}},
      {"off", call, 1, Mode::kOff, 0, {}},
      {"track", call, 1, Mode::kTrack, kNone, {}},
      {"sampled", call, 1, Mode::kTrack, 1, {}},
      {"profile", call, 1, Mode::kProfile, 0, {}},
      {"group", group, kGroup, Mode::kTrack, kNone, {}},
      {"group_sampled", group, kGroup, Mode::kTrack, 1, {}},
  };
  for (int i = 0; i < bursts; ++i) {
    for (Case& measured : cases) run(&measured);
  }
  for (const Case& measured : cases) print(measured.name, measured.bursts);
  print("exhausted", exhausted[0].bursts);
  part("clock", bursts, [] { falcon::monotonic_ns(); });
  int status = 0;
  void* context = nullptr;
  part("standin_record", bursts, [] { cuEventRecord(nullptr, kStream); });
  part("standin_capturing", bursts, [&] { cuStreamIsCapturing(kStream, &status); });
  part("standin_context", bursts, [&] { cuCtxGetCurrent(&context); });
  part("standin_query", bursts, [] { cuEventQuery(nullptr); });
  obey(Mode::kProfile, 0);
  const Share idle = helper_share(0);
  __atomic_store_n(&standin_device_done, false, __ATOMIC_RELEASE);
  call();
  const Share waiting = helper_share(0);
  __atomic_store_n(&standin_device_done, true, __ATOMIC_RELEASE);
  const Share busy = helper_share(kBusyBurst);
  const double per_event = (busy.cpu - waiting.cpu) * busy.seconds / static_cast<double>(busy.completed);
  printf("\"helper\": {\"idle_share\": %.6f, \"waiting_share\": %.6f, \"busy_share\": %.6f, \"per_event_ns\": %.2f}}\n",
         idle.cpu, waiting.cpu, busy.cpu, per_event * 1e9);
  remove_rings(folder);
  return 0;
}
