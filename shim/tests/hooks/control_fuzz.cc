// What a damaged control file, or one of another agent's making, can do to a rank: delay its calls, and no more.
// control_fuzz SECONDS SEED: two threads call collectives of the stand-in while the control file is spoilt again and
// again. Ends with 1 where a call waits for longer than a silent agent is waited for, or is not forwarded. LD_PRELOAD,
// FALCON_RING_DIR and FALCON_CONTROL as for hook_test.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/checking.h"
#include "common/control_file.h"
#include "standins/standin_gloo.h"

namespace {

constexpr int kCallers = 2;
constexpr uint64_t kMs = 1000000;
constexpr uint64_t kLongestNs = 10000 * kMs;  // an agent counts as dead after 2 s; the rest is for a busy machine
constexpr size_t kWords = 65536 / sizeof(uint64_t);
constexpr size_t kHeaderWords = sizeof(falcon::ControlHeader) / sizeof(uint64_t);

const gloo::StandinContext kWorld{0, 2, 2};
std::array<std::atomic<uint64_t>, kCallers> done;
std::atomic<bool> stopping;

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 * kMs + static_cast<uint64_t>(now.tv_nsec);
}

void sleep_ns(uint64_t duration) {
  const timespec pause{static_cast<time_t>(duration / (1000 * kMs)), static_cast<long>(duration % (1000 * kMs))};
  nanosleep(&pause, nullptr);
}

void call_on(int caller) {
  const gloo::AllreduceOptions options{&kWorld, {}, 1000, 4};
  while (!stopping.load(std::memory_order_relaxed)) {
    gloo::allreduce(options);
    done[static_cast<size_t>(caller)].fetch_add(1, std::memory_order_relaxed);
  }
}

class Fuzz {
 public:
  Fuzz(char* file, uint64_t seed)
      : words_(reinterpret_cast<std::atomic<uint64_t>*>(file)),
        header_(reinterpret_cast<falcon::ControlHeader*>(file)),
        entries_(reinterpret_cast<falcon::GateEntry*>(file + sizeof(falcon::ControlHeader))),
        random_(seed) {}

  // Writes a pause as the agent does, then changes some of its words.
  void write() {
    const uint64_t now = now_ns();
    header_->mode = below(4) == 0 ? below(4) : (falcon::Control::kArmed | below(4));
    header_->heartbeat_ns = now;
    header_->deadline_ns = now + (below(50) == 0 ? 3600000 * kMs : below(5 * kMs));
    if (below(200) == 0) header_->heartbeat_ns = header_->deadline_ns = any(now);
    header_->gate = ++gate_;
    header_->table_epoch = 2 * gate_;
    header_->entries = static_cast<uint32_t>(below(4));
    header_->sample_every = static_cast<uint32_t>(below(3));
    header_->cycle_calls = static_cast<uint32_t>(below(3));
    for (int i = 0; i < 4; ++i) {
      entries_[i].pid = static_cast<uint32_t>(getpid());
      entries_[i].key = below(3) << 40U | 1ULL << 32U;
      entries_[i].target = below(2) * any(now);
    }
    const uint64_t changes = below(4) == 0 ? below(6) : 0;
    for (uint64_t i = 0; i < changes; ++i) words_[below(below(2) == 0 ? kHeaderWords : kWords)] = any(now);
  }

  uint64_t below(uint64_t bound) { return random_() % bound; }

 private:
  uint64_t any(uint64_t now) {
    switch (below(5)) {
      case 0:
        return random_();
      case 1:
        return below(3);
      case 2:
        return std::numeric_limits<uint64_t>::max() - below(2);
      case 3:
        return now + below(100 * kMs);
      default:
        return 1ULL << below(64);
    }
  }

  std::atomic<uint64_t>* words_;
  falcon::ControlHeader* header_;
  falcon::GateEntry* entries_;
  std::mt19937_64 random_;
  uint64_t gate_ = 0;
};

// Waits until each caller has finished two calls more: the second began after the file was written.
bool goes_on() {
  std::array<uint64_t, kCallers> goal{};
  for (size_t i = 0; i < kCallers; ++i) goal[i] = done[i].load(std::memory_order_relaxed) + 2;
  const uint64_t began = now_ns();
  for (size_t i = 0; i < kCallers;) {
    if (done[i].load(std::memory_order_relaxed) >= goal[i]) {
      ++i;
    } else if (now_ns() - began > kLongestNs) {
      return false;
    } else {
      sleep_ns(kMs / 20);
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const char* folder = getenv("FALCON_RING_DIR");
  const char* control = getenv("FALCON_CONTROL");
  if (folder == nullptr || control == nullptr || argc != 3) return 64;
  mkdir(folder, 0755);
  const uint64_t ends = now_ns() + strtoul(argv[1], nullptr, 10) * 1000 * kMs;
  char* const file = make_control(control);
  Fuzz fuzz(file, strtoul(argv[2], nullptr, 10));
  std::vector<std::thread> callers;
  callers.reserve(kCallers);
  for (int caller = 0; caller < kCallers; ++caller) callers.emplace_back(call_on, caller);
  uint64_t rounds = 0;
  bool waits = false;
  while (!waits && now_ns() < ends) {
    fuzz.write();
    waits = !goes_on();
    ++rounds;
  }
  if (waits) {
    fprintf(stderr, "seed %s, round %lu: a call waits for more than 10 s\n", argv[2], rounds);
    _exit(1);
  }
  stopping = true;
  // Calls that wait are let go: without a mode, no gate is armed. The file is not made again: between its truncation
  // and its new content, a caller that reads its own mapping would end with SIGBUS.
  reinterpret_cast<falcon::ControlHeader*>(file)->mode = 0;
  uint64_t calls = 0;
  for (std::thread& caller : callers) caller.join();
  for (const std::atomic<uint64_t>& each : done) calls += each.load();
  CHECK(calls == gloo::standin_calls);
  printf("%lu rounds, %lu calls\n", rounds, calls);
  for (const std::string& path : rings(folder)) unlink(path.c_str());
  rmdir(folder);
  return failures == 0 ? 0 : 1;
}
