// The shim around a stand-in for NCCL (it is one: the real library needs a GPU). nccl_test [old]: linked against the
// newest interface, run with a library of that or of an early release. CTest sets LD_PRELOAD, FALCON_RING_DIR and
// FALCON_CONTROL.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "checking.h"
#include "control_file.h"
#include "standin_nccl.h"

using falcon::Kind;
using falcon::Op;
using falcon::Record;

namespace {

constexpr int kFloat32 = 7;
constexpr int kBfloat16 = 9;
constexpr int kInvalidUsage = 5;

char g_places[0x10000];  // handles are addresses in here

void* pointer(uint64_t value) { return &g_places[value]; }

void* const kSend = &g_places[0x5000];
void* const kRecv = &g_places[0x6000];
void* const kStream = &g_places[0x7000];
void* const kOther = &g_places[0x7100];
void* const kComm = &g_places[0xC000];

View g_ring{};
char* g_control = nullptr;

falcon::ControlHeader& control() { return *reinterpret_cast<falcon::ControlHeader*>(g_control); }

uint64_t head() { return g_ring.header->head.load(); }
const Record& last(uint64_t back = 0) { return g_ring.slots[head() - 1 - back]; }

// Checks name and arguments of what reached the library, and that it was reached by its twin.
void reached(const char* name, std::vector<uint64_t> arguments) {
  const bool same = standin_call.name != nullptr && strcmp(standin_call.name, name) == 0;
  if (!same) fprintf(stderr, "wanted %s, reached %s\n", name, standin_call.name);
  CHECK(same);
  CHECK(standin_call.twin);
  for (size_t i = 0; i < arguments.size(); ++i) CHECK(standin_call.arguments[i] == arguments[i]);
}

void recorded(Op op, uint64_t bytes, int32_t peer, uint8_t dtype, uint64_t comm, uint32_t number) {
  const Record& record = last();
  CHECK(record.kind == Kind::kEnqueued && record.op == op && record.bytes == bytes && record.peer_or_root == peer);
  CHECK(record.dtype == dtype && record.comm == comm && record.comm_seq == number);
  CHECK(record.duration_ns == 0 && record.flags == 0 && falcon::check_of(record) == record.check);
}

uint64_t word(const void* value) { return reinterpret_cast<uint64_t>(value); }

void a_communicator_makes_a_rank(const std::string& folder) {
  CHECK(rings(folder).empty());
  void* comm = nullptr;
  StandinUniqueId id{};
  id.internal[0] = 0x5A;
  standin_result = 2;
  CHECK(ncclCommInitRank(&comm, 4, id, 2) == 2);
  CHECK(rings(folder).empty());  // a creation that fails makes none
  standin_result = 0;
  standin_made = kComm;
  errno = ERANGE;
  CHECK(ncclCommInitRank(&comm, 4, id, 2) == 0 && comm == kComm);
  CHECK(errno == ERANGE);
  reached("ncclCommInitRank", {word(&comm), 4, 0x5A, 2});
  CHECK(rings(folder).size() == 1);
  g_ring = view(rings(folder)[0]);
  CHECK(head() == 1 && last().kind == Kind::kDescriptor && last().comm == 1 && last().bytes == 0);
  CHECK(last().group == 4 && last().peer_or_root == 2);
}

void each_call_argument_by_argument() {
  CHECK(ncclAllReduce(kSend, kRecv, 1000, kFloat32, 3, kComm, kStream) == 0);
  reached("ncclAllReduce", {word(kSend), word(kRecv), 1000, kFloat32, 3, word(kComm), word(kStream)});
  recorded(Op::kAllReduce, 4000, -1, 9, 1, 0);
  CHECK(last().stream == 1 && last().group == 0);
  CHECK(ncclReduce(kSend, kRecv, 10, kBfloat16, 1, 3, kComm, kOther) == 0);
  reached("ncclReduce", {word(kSend), word(kRecv), 10, kBfloat16, 1, 3, word(kComm), word(kOther)});
  recorded(Op::kReduce, 20, 3, 8, 1, 1);
  CHECK(last().stream == 2);
  CHECK(ncclBroadcast(kSend, kRecv, 7, 8, 1, kComm, nullptr) == 0);
  reached("ncclBroadcast", {word(kSend), word(kRecv), 7, 8, 1, word(kComm), 0});
  recorded(Op::kBroadcast, 56, 1, 10, 1, 2);
  CHECK(last().stream == 0);
  CHECK(ncclBcast(kRecv, 7, 0, 0, kComm, kStream) == 0);
  reached("ncclBcast", {word(kRecv), 7, 0, 0, word(kComm), word(kStream)});
  recorded(Op::kBroadcast, 7, 0, 1, 1, 3);
  CHECK(ncclAllGather(kSend, kRecv, 5, 6, kComm, kStream) == 0);
  reached("ncclAllGather", {word(kSend), word(kRecv), 5, 6, word(kComm), word(kStream)});
  recorded(Op::kAllGather, 10, -1, 7, 1, 4);
  CHECK(ncclReduceScatter(kSend, kRecv, 5, 4, 2, kComm, kStream) == 0);
  reached("ncclReduceScatter", {word(kSend), word(kRecv), 5, 4, 2, word(kComm), word(kStream)});
  recorded(Op::kReduceScatter, 40, -1, 5, 1, 5);
  CHECK(ncclAlltoAll(kSend, kRecv, 5, 2, kComm, kStream) == 0);
  reached("ncclAlltoAll", {word(kSend), word(kRecv), 5, 2, word(kComm), word(kStream)});
  recorded(Op::kAllToAll, 80, -1, 3, 1, 6);  // what it is made of inside leaves no record
  CHECK(ncclAllToAll(kSend, kRecv, 5, 3, kComm, kStream) == 0);
  reached("ncclAllToAll", {word(kSend), word(kRecv), 5, 3, word(kComm), word(kStream)});
  recorded(Op::kAllToAll, 80, -1, 4, 1, 7);
  CHECK(ncclGather(kSend, kRecv, 5, 1, 3, kComm, kStream) == 0);
  reached("ncclGather", {word(kSend), word(kRecv), 5, 1, 3, word(kComm), word(kStream)});
  recorded(Op::kGather, 5, 3, 2, 1, 8);
  CHECK(ncclScatter(kSend, kRecv, 5, 5, 0, kComm, kStream) == 0);
  reached("ncclScatter", {word(kSend), word(kRecv), 5, 5, 0, word(kComm), word(kStream)});
  recorded(Op::kScatter, 40, 0, 6, 1, 9);
  CHECK(ncclAllReduce(kSend, kRecv, 9, 99, 0, kComm, kStream) == 0);  // a type of a later release
  recorded(Op::kAllReduce, 0, -1, 0, 1, 10);
}

void sends_and_receives_are_numbered_apart() {
  const uint64_t before = head();
  CHECK(ncclSend(kSend, 3, 11, 1, kComm, kStream) == 0);
  reached("ncclSend", {word(kSend), 3, 11, 1, word(kComm), word(kStream)});
  recorded(Op::kSend, 3, 1, 12, 1 | falcon::kPointToPoint, 0);
  CHECK(head() == before + 2 && last(1).kind == Kind::kDescriptor && last(1).bytes == 1 && last(1).group == 4);
  CHECK(ncclRecv(kRecv, 3, kFloat32, 3, kComm, kStream) == 0);
  reached("ncclRecv", {word(kRecv), 3, kFloat32, 3, word(kComm), word(kStream)});
  recorded(Op::kRecv, 12, 3, 9, 1 | falcon::kPointToPoint, 1);
}

void what_fails_is_marked() {
  standin_result = 1;
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 1);
  CHECK(last().flags == falcon::kFailed && last().comm_seq == 11);
  standin_result = 7;  // in progress: accepted
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 7);
  CHECK(last().flags == 0);
  standin_result = 0;
}

void a_group_has_one_number() {
  CHECK(ncclGroupStart() == 0);
  CHECK(ncclSend(kSend, 1, kFloat32, 1, kComm, kStream) == 0);
  const uint32_t group = last().group;
  CHECK(group != 0);
  CHECK(ncclGroupStart() == 0);
  CHECK(ncclRecv(kRecv, 1, kFloat32, 3, kComm, kStream) == 0);
  CHECK(last().group == group);
  CHECK(ncclGroupEnd() == 0);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(last().group == group);
  CHECK(ncclGroupEnd() == 0);
  reached("ncclGroupEnd", {});
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(last().group == 0);
}

void a_child_names_its_parent() {
  void* child = nullptr;
  int list[2] = {0, 1};
  standin_made = pointer(0xC100);
  standin_rank = 1;
  standin_size = 2;
  CHECK(ncclCommSplit(kComm, 1, 0, &child, pointer(0x99)) == 0);
  reached("ncclCommSplit", {word(kComm), 1, 0, word(&child), word(pointer(0x99))});
  CHECK(last().kind == Kind::kDescriptor && last().comm == 2 && last().bytes == 1 && last().group == 2 &&
        last().peer_or_root == 1);
  standin_made = nullptr;  // no colour, no communicator
  const uint64_t before = head();
  CHECK(ncclCommSplit(kComm, -1, 0, &child, nullptr) == 0 && head() == before);
  standin_made = pointer(0xC200);
  CHECK(ncclCommShrink(pointer(0xC100), list, 2, &child, nullptr, 1) == 0);
  reached("ncclCommShrink", {word(pointer(0xC100)), word(list), 2, word(&child), 0, 1});
  CHECK(last().comm == 3 && last().bytes == 2);
  StandinUniqueId ids[2] = {};
  standin_made = pointer(0xC300);
  CHECK(ncclCommGrow(kComm, 6, ids, -1, &child, nullptr) == 0);
  reached("ncclCommGrow", {word(kComm), 6, word(ids), 0xFFFFFFFF, word(&child), 0});
  CHECK(last().comm == 4 && last().bytes == 1);
  // In a group the handle is there when the group ends.
  standin_made = pointer(0xC400);
  CHECK(ncclGroupStart() == 0);
  CHECK(ncclCommInitRankConfig(&child, 8, ids[0], 5, pointer(0x77)) == 0);
  reached("ncclCommInitRankConfig", {word(&child), 8, 0, 5, word(pointer(0x77))});
  CHECK(last().comm == 4);
  CHECK(ncclGroupEnd() == 0);
  CHECK(last().kind == Kind::kDescriptor && last().comm == 5 && last().group == 8 && last().peer_or_root == 5);
  standin_made = pointer(0xC500);
  CHECK(ncclCommInitRankScalable(&child, 8, 6, 2, ids, nullptr) == 0);
  reached("ncclCommInitRankScalable", {word(&child), 8, 6, 2, word(ids), 0});
  CHECK(last().comm == 6 && last().group == 8 && last().peer_or_root == 6);
  void* all[2] = {nullptr, pointer(0xC700)};
  standin_made = pointer(0xC600);
  CHECK(ncclCommInitAll(all, 2, list) == 0);
  reached("ncclCommInitAll", {word(all), 2, word(list)});
  CHECK(last(1).comm == 7 && last(1).peer_or_root == 0 && last().comm == 8 && last().peer_or_root == 1);
}

void an_address_that_comes_back_is_another_communicator() {
  CHECK(ncclCommFinalize(pointer(0xC100)) == 0);
  reached("ncclCommFinalize", {word(pointer(0xC100))});
  CHECK(ncclCommDestroy(pointer(0xC100)) == 0);
  reached("ncclCommDestroy", {word(pointer(0xC100))});
  CHECK(last().kind == Kind::kDescriptor && last().flags == falcon::kEnded && last().comm == 2);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, pointer(0xC100), kStream) == 0);
  CHECK(last().comm == 9 && last().comm_seq == 0 && last(1).kind == Kind::kDescriptor && last(1).bytes == 0);
  CHECK(ncclCommAbort(pointer(0xC100)) == 0);
  reached("ncclCommAbort", {word(pointer(0xC100))});
  CHECK(last().flags == falcon::kEnded && last().comm == 9);
}

void an_asynchronous_error_is_told_once() {
  int error = -1;
  const uint64_t before = head();
  standin_async_error = 7;
  CHECK(ncclCommGetAsyncError(kComm, &error) == 0 && error == 7 && head() == before);
  standin_async_error = 6;
  for (int i = 0; i < 3; ++i) CHECK(ncclCommGetAsyncError(kComm, &error) == 0 && error == 6);
  CHECK(head() == before + 1 && last().kind == Kind::kAsyncError && last().bytes == 6 && last().comm == 1);
  standin_async_error = 0;
}

template <typename Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

uint64_t completions(uint64_t from) {
  uint64_t found = 0;
  for (uint64_t i = from; i < head(); ++i) found += g_ring.slots[i].kind == Kind::kCompleted ? 1 : 0;
  return found;
}

const Record* completion(uint64_t from, uint64_t comm, uint32_t number) {
  for (uint64_t i = from; i < head(); ++i) {
    const Record& record = g_ring.slots[i];
    if (record.kind == Kind::kCompleted && record.comm == comm && record.comm_seq == number) return &record;
  }
  return nullptr;
}

void the_device_is_timed_in_profile_mode() {
  CHECK(standin_events_recorded == 0);  // track mode without sampling touches no stream
  control().mode = static_cast<uint32_t>(falcon::Mode::kProfile);
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
  CHECK(completions(before) == 0);  // the device has not run it
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
  CHECK(soon([&] { return completions(before) == 3; }));
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
  CHECK(soon([&] { return completions(before) == 3; }));
}

void track_mode_times_one_cycle_in_n() {
  control().cycle_calls = 5;
  control().sample_every = 4;
  control().mode = static_cast<uint32_t>(falcon::Mode::kTrack);
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
  control().mode = static_cast<uint32_t>(falcon::Mode::kOff);
  for (int i = 0; i < 3; ++i) CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(cudaGraphLaunch(pointer(0xE000), kStream) == 0);
  CHECK(head() == before && standin_events_recorded == events);
  control().sample_every = 0;
  control().mode = static_cast<uint32_t>(falcon::Mode::kTrack);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(head() == before + 1 && last().comm_seq == number + 4);
}

void what_the_library_lacks_is_refused() {
  void* child = nullptr;
  CHECK(ncclGather(kSend, kRecv, 5, 1, 3, kComm, kStream) == kInvalidUsage);
  CHECK(ncclCommShrink(kComm, nullptr, 0, &child, nullptr, 0) == kInvalidUsage && child == nullptr);
  CHECK(ncclCommSplit(kComm, 0, 0, &child, nullptr) == kInvalidUsage);
  const uint64_t before = head();
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(head() == before + 1);
}

void several_threads_at_once() {
  constexpr int kThreads = 4;
  constexpr int kCalls = 1000;
  control().mode = static_cast<uint32_t>(falcon::Mode::kProfile);
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
  uint64_t enqueued = 0;
  for (uint64_t i = before; i < head(); ++i) enqueued += g_ring.slots[i].kind == Kind::kEnqueued ? 1 : 0;
  CHECK(enqueued == 2ULL * kThreads * kCalls);
  control().mode = static_cast<uint32_t>(falcon::Mode::kTrack);
}

}  // namespace

int main(int argc, char** argv) {
  const char* folder = getenv("FALCON_RING_DIR");
  const char* path = getenv("FALCON_CONTROL");
  if (folder == nullptr || path == nullptr) return 64;
  puts(ncclGetLastError(nullptr));
  mkdir(folder, 0755);
  for (const std::string& old : rings(folder)) unlink(old.c_str());
  g_control = make_control(path);
  a_communicator_makes_a_rank(folder);
  if (argc > 1 && strcmp(argv[1], "old") == 0) {
    what_the_library_lacks_is_refused();
    return failures == 0 ? 0 : 1;
  }
  each_call_argument_by_argument();
  sends_and_receives_are_numbered_apart();
  what_fails_is_marked();
  a_group_has_one_number();
  a_child_names_its_parent();
  an_address_that_comes_back_is_another_communicator();
  an_asynchronous_error_is_told_once();
  the_device_is_timed_in_profile_mode();
  a_group_gets_one_pair_per_stream();
  a_capturing_stream_gets_no_event();
  track_mode_times_one_cycle_in_n();
  switched_off_calls_are_counted_and_not_recorded();
  several_threads_at_once();
  for (const std::string& ring : rings(folder)) unlink(ring.c_str());
  return failures == 0 ? 0 : 1;
}
