// Device times of NCCL's calls, by the shim around stand-ins for NCCL and CUDA: which calls get events, and what the
// modes, groups, graphs, faults and several threads do to it. nccl_device_test [faults]: a driver that fails for good.
// CTest sets LD_PRELOAD, FALCON_RING_DIR and FALCON_CONTROL.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/checking.h"
#include "common/own_rank.h"
#include "nccl/nccl_places.h"
#include "standins/standin_nccl.h"

using falcon::Kind;
using falcon::Op;
using falcon::Record;

namespace {

template <typename Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

const Record* completion(uint64_t from, uint64_t comm, uint32_t number) {
  for (uint64_t i = from; i < head(); ++i) {
    const Record& record = g_ring.slots[i];
    if (record.kind == Kind::kCompleted && record.comm == comm && record.comm_seq == number) return &record;
  }
  return nullptr;
}

void the_device_is_timed_in_profile_mode() {
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(standin_events_recorded == 0);  // track mode without sampling touches no stream
  set_mode(falcon::Mode::kProfile);
  // The first calls find an empty pool: the helper makes the pairs.
  CHECK(soon([] {
    ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream);
    return standin_events_recorded > 0;
  }));
  CHECK(standin_unsafe_calls == 0);
  const uint64_t before = head();
  __atomic_store_n(&standin_device_done, false, __ATOMIC_RELEASE);
  standin_elapsed_ms = 2.5F;
  CHECK(ncclReduceScatter(kSend, kRecv, 5, 4, 2, kComm, kOther) == 0);
  CHECK(standin_recorded_on == kOther);
  const Record enqueued = last();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(records(Kind::kCompleted, before) == 0);  // the device has not run it
  __atomic_store_n(&standin_device_done, true, __ATOMIC_RELEASE);
  CHECK(soon([&] { return completion(before, enqueued.comm, enqueued.comm_seq) != nullptr; }));
  const Record* done = completion(before, enqueued.comm, enqueued.comm_seq);
  if (done != nullptr) {
    CHECK(done->duration_ns == 2500000 && done->op == Op::kReduceScatter && done->bytes == enqueued.bytes);
    CHECK(done->stream == enqueued.stream && falcon::check_of(*done) == done->check);
  }
}

void a_group_gets_one_pair_per_stream() {
  const int events = standin_events_recorded;
  const uint64_t before = head();
  CHECK(ncclGroupStart() == 0);
  CHECK(ncclSend(kSend, 1, kFloat32, 1, kComm, kStream) == 0);
  CHECK(ncclRecv(kRecv, 1, kFloat32, 3, kComm, kStream) == 0);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kOther) == 0);
  CHECK(standin_events_recorded == events);  // nothing inside
  CHECK(ncclGroupEnd() == 0);
  CHECK(standin_events_recorded == events + 4);
  CHECK(soon([&] { return records(Kind::kCompleted, before) == 3; }));
}

void a_capturing_stream_gets_no_event() {
  const int events = standin_events_recorded;
  standin_capturing = kStream;
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(last().flags == falcon::kCaptured);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, nullptr) == 0);  // the default stream must be left alone
  CHECK(standin_events_recorded == events);
  standin_capturing = nullptr;
  const uint64_t before = head();
  CHECK(cudaGraphLaunch(pointer(0xE000), kStream) == 0);
  CHECK(last().kind == Kind::kGraphLaunch && last().comm == (1 | falcon::kGraph) && last().comm_seq == 0);
  CHECK(standin_events_recorded == events + 2);
  CHECK(soon([&] { return completion(before, 1 | falcon::kGraph, 0) != nullptr; }));
  CHECK(cudaGraphLaunch(pointer(0xE000), kStream) == 0 && cudaGraphLaunch(pointer(0xE100), kStream) == 0);
  CHECK(soon([&] { return records(Kind::kCompleted, before) == 3; }));
}

void track_mode_times_one_cycle_in_n() {
  control().cycle_calls = 5;
  control().sample_every = 4;
  set_mode(falcon::Mode::kTrack);
  const int events = standin_events_recorded;
  for (int i = 0; i < 200; ++i) {
    CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  CHECK(standin_events_recorded - events == 100);  // 50 of 200 calls, two events each
  control().sample_every = 0;
}

void switched_off_calls_are_counted_and_not_recorded() {
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  const uint32_t number = last().comm_seq;
  const uint64_t before = head();
  const int events = standin_events_recorded;
  control().sample_every = 1;
  set_mode(falcon::Mode::kOff);
  for (int i = 0; i < 3; ++i) CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(cudaGraphLaunch(pointer(0xE000), kStream) == 0);
  CHECK(head() == before && standin_events_recorded == events);
  control().sample_every = 0;
  set_mode(falcon::Mode::kTrack);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(head() == before + 1 && last().comm_seq == number + 4);
}

// The counter of a communicator's collectives.
const falcon::Counter& collectives_of(uint64_t comm) {
  const auto* counters = reinterpret_cast<const falcon::Counter*>(reinterpret_cast<const char*>(g_ring.header) +
                                                                  g_ring.header->counters_offset);
  const falcon::Counter* found =
      std::find_if(counters, counters + g_ring.header->counters - 1,
                   [comm](const auto& counter) { return counter.key == (comm << 40U | 1ULL << 32U); });
  return *found;
}

void a_communicator_counts_what_was_called_and_what_the_device_did() {
  const falcon::Counter& counter = collectives_of(1);
  set_mode(falcon::Mode::kProfile);
  CHECK(soon([&] { return counter.finished == counter.entered; }));
  __atomic_store_n(&standin_device_done, false, __ATOMIC_RELEASE);
  const uint64_t before = counter.entered;
  for (uint64_t i = 1; i <= 3; ++i) {
    CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
    CHECK(counter.entered == before + i && counter.finished == before);
  }
  __atomic_store_n(&standin_device_done, true, __ATOMIC_RELEASE);
  CHECK(soon([&] { return counter.finished == before + 3; }));
  set_mode(falcon::Mode::kTrack);  // not timed: the next timed call reports what the device did
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(counter.entered == before + 4 && counter.finished == before + 3);
  set_mode(falcon::Mode::kProfile);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(soon([&] { return counter.finished == before + 5; }));
}

// Of all threads but this thread.
uint64_t waits_of_others() {
  uint64_t waits = 0;
  const std::string own = std::to_string(getpid());
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (thread.path().filename() == own) continue;
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("voluntary_ctxt_switches:", 0) == 0) waits += std::stoul(line.substr(line.find(':') + 1));
    }
  }
  return waits;
}

int threads_named(const std::string& wanted) {
  int found = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    std::getline(file, name);
    found += name == wanted ? 1 : 0;
  }
  return found;
}

void the_helper_sleeps_until_it_is_needed() {
  CHECK(threads_named("falcon-events") == 1);
  uint64_t waits = UINT64_MAX;
  for (int i = 0; i < 20 && waits >= 20; ++i) {
    const uint64_t before = waits_of_others();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    waits = waits_of_others() - before;
  }
  CHECK(waits < 20);  // polls: a hundred
  set_mode(falcon::Mode::kProfile);
  const uint64_t before = head();
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(soon([&] { return records(Kind::kCompleted, before) == 1; }));
}

// Makes calls of which so many are timed while the device does nothing.
void fall_behind(int calls) {
  set_mode(falcon::Mode::kProfile);
  __atomic_store_n(&standin_device_done, false, __ATOMIC_RELEASE);
  const int events = standin_events_recorded;
  for (int i = 0; i < 10000 && standin_events_recorded - events < 2 * calls; ++i) {
    for (int j = 0; j < 64 && standin_events_recorded - events < 2 * calls; ++j) {
      ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the helper makes more pairs
  }
  CHECK(standin_events_recorded - events == 2 * calls);
}

void only_the_oldest_of_a_stream_is_asked_for() {
  constexpr int kCalls = 3000;
  const uint64_t before = head();
  fall_behind(kCalls);
  const int queries = __atomic_load_n(&standin_queries, __ATOMIC_RELAXED);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int asked = __atomic_load_n(&standin_queries, __ATOMIC_RELAXED) - queries;
  CHECK(asked > 0 && asked < kCalls);  // 40 polls
  __atomic_store_n(&standin_device_done, true, __ATOMIC_RELEASE);
  CHECK(soon([&] { return records(Kind::kCompleted, before) == kCalls; }));
  set_mode(falcon::Mode::kTrack);
}

void a_question_without_an_answer_is_asked_again() {
  CHECK(g_ring.header->device_times == falcon::DeviceTimes::kOn && g_ring.header->device_faults == 0);
  set_mode(falcon::Mode::kProfile);
  const uint64_t before = head();
  __atomic_store_n(&standin_faults, 1, __ATOMIC_RELEASE);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(soon([&] { return records(Kind::kCompleted, before) == 1; }));
  CHECK(g_ring.header->device_times == falcon::DeviceTimes::kOn && g_ring.header->device_faults == 1);
  CHECK(g_ring.header->device_code == 700);
  set_mode(falcon::Mode::kTrack);
}

void a_driver_that_answers_no_more_ends_it_and_the_ring_says_so() {
  set_mode(falcon::Mode::kProfile);
  __atomic_store_n(&standin_faults, 1 << 20, __ATOMIC_RELEASE);
  CHECK(soon([] {
    ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream);
    return g_ring.header->device_times == falcon::DeviceTimes::kOff;
  }));
  CHECK(g_ring.header->device_reason == falcon::NoDeviceTimes::kFaults && g_ring.header->device_code == 700);
  CHECK(g_ring.header->device_faults == 100);
  const int events = standin_events_recorded;
  const uint64_t before = head();
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(standin_events_recorded == events && head() == before + 1);  // tracked, not timed
}

void several_threads_at_once() {
  constexpr int kThreads = 4;
  constexpr int kCalls = 1000;
  set_mode(falcon::Mode::kProfile);
  const uint64_t before = head();
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread] {
      void* comm = pointer(0xD000 + static_cast<uint64_t>(thread % 2) * 0x100);
      for (int i = 0; i < kCalls; ++i) {
        ncclGroupStart();
        ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, comm, pointer(0x8000 + static_cast<uint64_t>(thread)));
        ncclSend(kSend, 1, kFloat32, thread, comm, pointer(0x8000 + static_cast<uint64_t>(thread)));
        ncclGroupEnd();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(records(Kind::kEnqueued, before) == 2ULL * kThreads * kCalls);
  set_mode(falcon::Mode::kTrack);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = make_places();
  if (folder.empty()) return 64;
  puts(ncclGetLastError(nullptr));
  void* comm = nullptr;
  standin_made = kComm;
  CHECK(ncclCommInitRank(&comm, 4, StandinUniqueId{}, 2) == 0);
  g_ring = view(rings(folder)[0]);
  if (argc > 1 && strcmp(argv[1], "faults") == 0) {
    a_driver_that_answers_no_more_ends_it_and_the_ring_says_so();
    return failures == 0 ? 0 : 1;
  }
  standin_watch_exit();
  the_device_is_timed_in_profile_mode();
  a_communicator_counts_what_was_called_and_what_the_device_did();
  a_group_gets_one_pair_per_stream();
  a_capturing_stream_gets_no_event();
  track_mode_times_one_cycle_in_n();
  switched_off_calls_are_counted_and_not_recorded();
  the_helper_sleeps_until_it_is_needed();
  only_the_oldest_of_a_stream_is_asked_for();
  a_question_without_an_answer_is_asked_again();
  several_threads_at_once();
  fall_behind(100);  // what is outstanding at exit
  remove_rings(folder);
  return failures == 0 ? 0 : 1;
}
