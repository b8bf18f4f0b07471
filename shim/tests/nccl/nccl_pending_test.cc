// Communicators that do not block, by the shim around stand-ins for NCCL and CUDA (the real ones need a GPU): what is
// still in progress is neither timed nor asked, and is known once the communicator says that it is done. CTest sets
// LD_PRELOAD, FALCON_RING_DIR and FALCON_CONTROL.
#include <chrono>
#include <string>
#include <thread>

#include "common/checking.h"
#include "common/own_rank.h"
#include "nccl/nccl_places.h"
#include "standins/standin_nccl.h"

using falcon::Kind;

namespace {

constexpr int kInProgress = 7;
constexpr int kRemoteError = 6;

template <typename Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

int reduce(void* comm) { return ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, comm, kStream); }

// What the communicator says of itself, as a program asks that waits for it.
int state_of(void* comm) {
  int state = -1;
  CHECK(ncclCommGetAsyncError(comm, &state) == 0);
  return state;
}

void a_communicator_in_progress_is_known_by_its_call(const std::string& folder) {
  void* comm = kComm;  // NCCL writes the handle before it returns
  standin_not_ready = kComm;
  standin_result = kInProgress;
  CHECK(ncclCommInitRankConfig(&comm, 4, StandinUniqueId{}, 2, pointer(0x77)) == kInProgress);
  g_ring = view(rings(folder)[0]);
  CHECK(head() == 1 && last().kind == Kind::kDescriptor && last().group == 4 && last().peer_or_root == 2);
  CHECK(state_of(kComm) == kInProgress && head() == 1);
  standin_not_ready = nullptr;
  standin_result = 0;
  CHECK(state_of(kComm) == 0 && head() == 1 && standin_warnings == 0);
}

void what_is_not_on_the_stream_yet_is_not_timed() {
  set_mode(falcon::Mode::kProfile);
  __atomic_store_n(&standin_device_done, true, __ATOMIC_RELEASE);
  CHECK(soon([] {
    reduce(kComm);
    return standin_events_recorded >= 2;
  }));
  CHECK(soon([] { return records(Kind::kCompleted, 0) * 2 == static_cast<uint64_t>(standin_events_recorded); }));
  const uint64_t before = head();
  standin_result = kInProgress;
  CHECK(reduce(kComm) == kInProgress && last().kind == Kind::kEnqueued && last().flags == 0);
  CHECK(ncclGroupStart() == kInProgress && reduce(kComm) == kInProgress && ncclGroupEnd() == kInProgress);
  standin_result = 0;
  CHECK(ncclGroupStart() == 0 && reduce(kComm) == 0);
  standin_result = kInProgress;
  CHECK(ncclGroupEnd() == kInProgress);
  standin_result = 0;
  CHECK(reduce(kComm) == 0);
  const uint32_t number = last().comm_seq;
  CHECK(soon([&] { return records(Kind::kCompleted, before) > 0; }));
  CHECK(records(Kind::kCompleted, before) == 1 && last().comm_seq == number);
  CHECK(records(Kind::kEnqueued, before) == 4);
  set_mode(falcon::Mode::kTrack);
}

void a_split_keeps_its_parent() {
  void* child = nullptr;
  const uint64_t before = head();
  standin_result = kInProgress;
  CHECK(ncclCommSplit(kComm, 1, 0, &child, nullptr) == kInProgress && child == nullptr);
  standin_result = 0;
  standin_not_ready = kComm;
  CHECK(state_of(kComm) == kInProgress && head() == before);
  child = pointer(0xC100);  // as NCCL's own thread writes it
  standin_not_ready = nullptr;
  standin_rank = 1;
  standin_size = 2;
  CHECK(state_of(kComm) == 0);
  CHECK(head() == before + 1 && last().kind == Kind::kDescriptor && last().comm == 2 && last().bytes == 1);
  CHECK(last().group == 2 && last().peer_or_root == 1);
  CHECK(state_of(kComm) == 0 && head() == before + 1);
}

// NCCL says that the parent has succeeded before it writes the child's handle.
void a_split_whose_handle_comes_late_keeps_its_parent() {
  void* child = nullptr;
  const uint64_t before = head();
  standin_result = kInProgress;
  CHECK(ncclCommSplit(kComm, 1, 0, &child, nullptr) == kInProgress);
  standin_result = 0;
  CHECK(state_of(kComm) == 0 && head() == before);
  child = pointer(0xC180);
  CHECK(state_of(child) == 0 && reduce(child) == 0);
  CHECK(head() == before + 2 && last(1).kind == Kind::kDescriptor && last(1).comm == 3 && last(1).bytes == 1);
}

void a_split_in_a_group_keeps_its_parent() {
  void* children[2] = {nullptr, nullptr};
  const uint64_t before = head();
  CHECK(ncclGroupStart() == 0);
  for (int i = 0; i < 2; ++i) CHECK(ncclCommSplit(kComm, 1 - 2 * i, 0, &children[i], nullptr) == 0);
  standin_result = kInProgress;
  CHECK(ncclGroupEnd() == kInProgress && head() == before);
  standin_result = 0;
  children[0] = pointer(0xC200);
  CHECK(state_of(kComm) == 0);
  CHECK(head() == before + 1 && last().comm == 4 && last().bytes == 1);  // the other has no colour
}

void a_split_that_fails_makes_nothing() {
  void* child = nullptr;
  standin_result = kInProgress;
  CHECK(ncclCommSplit(kComm, 1, 0, &child, nullptr) == kInProgress);
  standin_result = 0;
  standin_async_error = kRemoteError;
  const uint64_t before = head();
  CHECK(state_of(kComm) == kRemoteError);
  CHECK(head() == before + 1 && last().kind == Kind::kAsyncError);
  standin_async_error = 0;
  child = pointer(0xC300);
  CHECK(state_of(kComm) == 0 && head() == before + 1);
}

void nobody_waits_for_a_communicator_that_is_gone() {
  void* child = nullptr;
  standin_result = kInProgress;
  CHECK(ncclCommSplit(pointer(0xC200), 1, 0, &child, nullptr) == kInProgress);
  standin_result = 0;
  CHECK(ncclCommAbort(pointer(0xC200)) == 0);
  child = pointer(0xC400);
  const uint64_t before = head();
  CHECK(state_of(pointer(0xC200)) == 0 && head() == before);  // another at the same address
}

// Made by a call that was not seen.
void a_communicator_that_is_not_ready_is_not_asked() {
  void* unknown = pointer(0xC900);
  standin_not_ready = unknown;
  const uint64_t before = head();
  standin_result = kInProgress;
  CHECK(reduce(unknown) == kInProgress && head() == before + 1);
  standin_result = 0;
  standin_not_ready = nullptr;
  CHECK(reduce(unknown) == 0 && head() == before + 3 && last(1).kind == Kind::kDescriptor);
  CHECK(last(1).comm == last().comm && last().comm_seq == 1);
}

}  // namespace

int main() {
  const std::string folder = make_places();
  if (folder.empty()) return 64;
  puts(ncclGetLastError(nullptr));
  a_communicator_in_progress_is_known_by_its_call(folder);
  what_is_not_on_the_stream_yet_is_not_timed();
  a_split_keeps_its_parent();
  a_split_whose_handle_comes_late_keeps_its_parent();
  a_split_in_a_group_keeps_its_parent();
  a_split_that_fails_makes_nothing();
  nobody_waits_for_a_communicator_that_is_gone();
  a_communicator_that_is_not_ready_is_not_asked();
  CHECK(standin_warnings == 0);
  remove_rings(folder);
  return failures == 0 ? 0 : 1;
}
