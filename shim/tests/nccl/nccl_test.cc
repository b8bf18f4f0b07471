// The shim around a stand-in for NCCL (it is one: the real library needs a GPU): every hook, argument by argument.
// nccl_test [old]: linked against the newest interface, run with a library of that or of an early release. CTest sets
// LD_PRELOAD, FALCON_RING_DIR and FALCON_CONTROL.
#include <dlfcn.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "common/checking.h"
#include "common/own_rank.h"
#include "nccl/nccl_places.h"
#include "standins/standin_nccl.h"

using falcon::Kind;
using falcon::Op;
using falcon::Record;

namespace {

constexpr int kInvalidUsage = 5;

uint64_t word(const void* value) { return reinterpret_cast<uint64_t>(value); }

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

void each_call_with_a_configuration() {
  const void* config = pointer(0x99);
  CHECK(ncclAllReduceConfig(kSend, kRecv, 1000, kFloat32, 3, kComm, kStream, config) == 0);
  reached("ncclAllReduceConfig",
          {word(kSend), word(kRecv), 1000, kFloat32, 3, word(kComm), word(kStream), word(config)});
  recorded(Op::kAllReduce, 4000, -1, 9, 1, 11);
  CHECK(ncclBroadcastConfig(kSend, kRecv, 7, 8, 1, kComm, kStream, config) == 0);
  reached("ncclBroadcastConfig", {word(kSend), word(kRecv), 7, 8, 1, word(kComm), word(kStream), word(config)});
  recorded(Op::kBroadcast, 56, 1, 10, 1, 12);
  CHECK(ncclReduceConfig(kSend, kRecv, 10, kBfloat16, 1, 3, kComm, kOther, config) == 0);
  reached("ncclReduceConfig", {word(kSend), word(kRecv), 10, kBfloat16, 1, 3, word(kComm), word(kOther), word(config)});
  recorded(Op::kReduce, 20, 3, 8, 1, 13);
  CHECK(ncclAllGatherConfig(kSend, kRecv, 5, 6, kComm, kStream, config) == 0);
  reached("ncclAllGatherConfig", {word(kSend), word(kRecv), 5, 6, word(kComm), word(kStream), word(config)});
  recorded(Op::kAllGather, 10, -1, 7, 1, 14);
  CHECK(ncclReduceScatterConfig(kSend, kRecv, 5, 4, 2, kComm, kStream, config) == 0);
  reached("ncclReduceScatterConfig", {word(kSend), word(kRecv), 5, 4, 2, word(kComm), word(kStream), word(config)});
  recorded(Op::kReduceScatter, 40, -1, 5, 1, 15);
  CHECK(ncclAlltoAllConfig(kSend, kRecv, 5, 2, kComm, kStream, config) == 0);
  reached("ncclAlltoAllConfig", {word(kSend), word(kRecv), 5, 2, word(kComm), word(kStream), word(config)});
  recorded(Op::kAllToAll, 80, -1, 3, 1, 16);
  CHECK(ncclGatherConfig(kSend, kRecv, 5, 1, 3, kComm, kStream, config) == 0);
  reached("ncclGatherConfig", {word(kSend), word(kRecv), 5, 1, 3, word(kComm), word(kStream), word(config)});
  recorded(Op::kGather, 5, 3, 2, 1, 17);
  CHECK(ncclScatterConfig(kSend, kRecv, 5, 5, 0, kComm, kStream, config) == 0);
  reached("ncclScatterConfig", {word(kSend), word(kRecv), 5, 5, 0, word(kComm), word(kStream), word(config)});
  recorded(Op::kScatter, 40, 0, 6, 1, 18);
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
  CHECK(last().flags == falcon::kFailed && last().comm_seq == 19);
  standin_result = 7;  // in progress: accepted
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 7);
  CHECK(last().flags == 0);
  standin_result = 0;
}

void a_group_has_one_number() {
  CHECK(ncclGroupStart() == 0);
  CHECK(ncclSend(kSend, 1, kFloat32, 1, kComm, kStream) == 0);
  CHECK(ncclGroupStart() == 0);
  CHECK(ncclRecv(kRecv, 1, kFloat32, 3, kComm, kStream) == 0);
  CHECK(ncclGroupEnd() == 0);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  const uint32_t group = last().group;
  CHECK(group != 0 && last().op == Op::kAllReduce);
  CHECK(ncclGroupEnd() == 0);
  reached("ncclGroupEnd", {});
  recorded(Op::kRecv, 4, 3, 9, 1 | falcon::kPointToPoint, 3);  // what they are shows only now
  CHECK(last().group == group && last(1).group == group && last(1).op == Op::kSend && last(1).comm_seq == 2);
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

// The sanitizers' build has a driver all the same.
void a_process_without_a_driver_says_why_nothing_is_timed() {
  const falcon::RingHeader& header = *g_ring.header;
  CHECK(header.device_times == falcon::DeviceTimes::kNotAsked);
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr) return;
  set_mode(falcon::Mode::kProfile);
  CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream) == 0);
  CHECK(header.device_times == falcon::DeviceTimes::kOff);
  CHECK(header.device_reason == falcon::NoDeviceTimes::kNoDriver);
  set_mode(falcon::Mode::kTrack);
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

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = make_places();
  if (folder.empty()) return 64;
  puts(ncclGetLastError(nullptr));
  a_communicator_makes_a_rank(folder);
  if (argc > 1 && strcmp(argv[1], "old") == 0) {
    what_the_library_lacks_is_refused();
    return failures == 0 ? 0 : 1;
  }
  each_call_argument_by_argument();
  each_call_with_a_configuration();
  sends_and_receives_are_numbered_apart();
  what_fails_is_marked();
  a_group_has_one_number();
  a_child_names_its_parent();
  an_address_that_comes_back_is_another_communicator();
  an_asynchronous_error_is_told_once();
  a_process_without_a_driver_says_why_nothing_is_timed();
  remove_rings(folder);
  return failures == 0 ? 0 : 1;
}
