// When the profiler plugin asks NCCL for a call's channels, what it makes of their device times, and what the modes and
// several threads do to it; driven by a stand-in for NCCL (profiler_driver.h). CTest sets what profiler_test has, too.
#include <string>
#include <thread>
#include <vector>

#include "common/checking.h"
#include "common/own_rank.h"
#include "nccl/profiler_driver.h"

using falcon::Kind;
using falcon::Op;

namespace {

// The number of the first call that is timed: the switch is read when the call before it is made.
void the_device_is_timed_in_profile_mode(int version) {
  const int quiet = made(version).mask;
  const auto call = [version] {
    if (version == 4) return collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 2);
    void* api = collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
    return collective(5, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 2, api);
  };
  CHECK(call() == nullptr);
  set_mode(falcon::Mode::kProfile);
  CHECK(call() == nullptr);
  CHECK(made(version).mask == (quiet | kKernelChannel));
  void* watched = call();
  const uint32_t number = last().comm_seq;
  CHECK(watched != nullptr);
  const uint64_t before = head();
  void* first = kernel_channel(version, watched, 0, 5000);
  void* second = kernel_channel(version, watched, 1, 4000);
  CHECK(first != nullptr && second != nullptr);
  CHECK(table(version).stop(watched) == 0);  // enqueued; says nothing of the device
  kernel_channel_ends(version, second, 9000);
  CHECK(head() == before);
  kernel_channel_ends(version, first, 8000);
  CHECK(head() == before + 1 && last().kind == Kind::kCompleted && last().comm == static_cast<uint64_t>(version));
  CHECK(last().comm_seq == number && last().duration_ns == 5000 && last().op == Op::kAllReduce);
  kernel_channel_ends(version, first, 9999);  // stale
  kernel_channel_ends(version, kernel_channel(version, watched, 0, 1), 2);
  CHECK(head() == before + 1);
  set_mode(falcon::Mode::kTrack);
  call();
  CHECK(made(version).mask == quiet);
  CHECK(kernel_channel(version, nullptr, 0, 1) == nullptr);
}

void a_send_is_timed() {
  set_mode(falcon::Mode::kProfile);
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  void* api = single_api("Send", 3, "ncclFloat32", nullptr, false, nullptr);
  void* watched = single(5, 6, "Send", 3, 6, 7, "ncclFloat32", api);
  const uint32_t number = last().comm_seq;
  kernel_channel_ends(5, kernel_channel(5, watched, 3, 100), 350);
  CHECK(last().kind == Kind::kCompleted && last().comm == (5 | falcon::kPointToPoint) && last().comm_seq == number);
  CHECK(last().duration_ns == 250);
  CHECK(collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, true, nullptr) == nullptr);  // runs with its graph
  set_mode(falcon::Mode::kTrack);
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
}

void a_call_whose_end_is_never_told_gives_its_place_up() {
  set_mode(falcon::Mode::kProfile);
  collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32");
  void* forgotten = collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 1);
  for (int i = 0; i < 5000; ++i) CHECK(collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 1) != nullptr);
  const uint64_t before = head();
  kernel_channel_ends(4, kernel_channel(4, forgotten, 0, 1), 2);
  CHECK(head() == before);
  set_mode(falcon::Mode::kTrack);
  collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32");
}

void switched_off_calls_are_counted_and_not_recorded() {
  const uint64_t before = head();
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  const uint32_t number = last().comm_seq;
  set_mode(falcon::Mode::kOff);
  control().sample_every = 1;
  control().cycle_calls = 1;
  for (int i = 0; i < 3; ++i) collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  CHECK(head() == before + 1 && (made(5).mask & kKernelChannel) == 0);
  control().sample_every = 0;
  set_mode(falcon::Mode::kTrack);
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  CHECK(head() == before + 2 && last().comm_seq == number + 4);
}

void several_threads_at_once() {
  constexpr int kThreads = 4;
  constexpr int kCalls = 1000;
  set_mode(falcon::Mode::kProfile);
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  const uint64_t before = head();
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([] {
      for (int i = 0; i < kCalls; ++i) {
        void* api = collective_api("AllReduce", 10, "ncclFloat32", 0, &g_places[1], false, group_api(2));
        void* watched = collective(5, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 2, api);
        for (uint8_t channel = 0; channel < 2; ++channel) {
          kernel_channel_ends(5, kernel_channel(5, watched, channel, 10), 20);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(records(Kind::kEnqueued, before) == static_cast<uint64_t>(kThreads) * kCalls);
  CHECK(records(Kind::kCompleted, before) == static_cast<uint64_t>(kThreads) * kCalls);
  set_mode(falcon::Mode::kTrack);
}

}  // namespace

int main() {
  const std::string folder = make_places();
  if (folder.empty() || !open_plugin()) return 64;
  for (int version = 1; version <= 5; ++version) begin(version);  // so that each has its own number
  g_ring = view(rings(folder)[0]);
  the_device_is_timed_in_profile_mode(4);
  the_device_is_timed_in_profile_mode(5);
  a_send_is_timed();
  a_call_whose_end_is_never_told_gives_its_place_up();
  switched_off_calls_are_counted_and_not_recorded();
  several_threads_at_once();
  remove_rings(folder);
  return failures == 0 ? 0 : 1;
}
