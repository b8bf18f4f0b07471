// What the profiler plugin records of the calls that each version of NCCL's interface tells of, driven by a stand-in
// for NCCL (profiler_driver.h). CTest sets LD_PRELOAD, NCCL_PROFILER_PLUGIN, FALCON_RING_DIR and FALCON_CONTROL.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include "common/checking.h"
#include "common/own_rank.h"
#include "nccl/profiler_driver.h"
#include "standins/standin_nccl.h"

using falcon::Kind;
using falcon::Op;
using falcon::Record;

namespace {

void recorded(Op op, uint64_t bytes, int32_t peer, uint8_t dtype, uint64_t comm, uint32_t number) {
  const Record& record = last();
  CHECK(record.kind == Kind::kEnqueued && record.op == op && record.bytes == bytes && record.peer_or_root == peer);
  CHECK(record.dtype == dtype && record.comm == comm && record.comm_seq == number && record.duration_ns == 0);
  CHECK(falcon::check_of(record) == record.check);
}

void a_communicator_makes_a_rank(const std::string& folder) {
  CHECK(rings(folder).empty());
  begin(1);
  CHECK(rings(folder).size() == 1);
  g_ring = view(rings(folder)[0]);
  CHECK(head() == 0);  // before v4 nobody tells its rank and size
  begin(2);
  begin(3);
  CHECK(head() == 0);
  begin(4);
  CHECK(head() == 1 && last().kind == Kind::kDescriptor && last().comm == 4 && last().group == 8 &&
        last().peer_or_root == 5);
  begin(5);
  CHECK(head() == 2 && last().kind == Kind::kDescriptor && last().comm == 5 && last().group == 8);
}

void each_call_before_v5(int version) {
  const auto comm = static_cast<uint64_t>(version);
  collective(version, 4, "AllReduce", 1000, 0, 7, "ncclFloat32");
  recorded(Op::kAllReduce, 4000, -1, 9, comm, 0);
  CHECK(last().flags == 0 && last().group == 0 && last().stream == 0);
  collective(version, 0, "Broadcast", 7, 3, 8, "ncclFloat64");
  recorded(Op::kBroadcast, 56, 3, 10, comm, 1);
  collective(version, 1, "Reduce", 10, 2, 9, "ncclBfloat16");
  recorded(Op::kReduce, 20, 2, 8, comm, 2);
  collective(version, 2, "AllGather", 5, 0, 6, "ncclFloat16");
  recorded(Op::kAllGather, 10, -1, 7, comm, 3);
  collective(version, 3, "ReduceScatter", 5, 0, 4, "ncclInt64");
  recorded(Op::kReduceScatter, 40, -1, 5, comm, 4);
  collective(version, 99, "NewCollective", 5, 0, 99, "ncclNewType");  // of a later release
  recorded(Op::kUnknown, 0, -1, 0, comm, 5);
  single(version, 6, "Send", 3, 6, 7, "ncclFloat32");
  recorded(Op::kSend, 12, 6, 9, comm | falcon::kPointToPoint, 0);
  CHECK(last(1).kind == Kind::kDescriptor && last(1).comm == (comm | falcon::kPointToPoint) && last(1).bytes == comm);
  single(version, 7, "Recv", 3, 4, 0, "ncclInt8");
  recorded(Op::kRecv, 3, 4, 1, comm | falcon::kPointToPoint, 1);
  const uint64_t before = head();
  CHECK(started(version, kGroup, nullptr, {}) == nullptr);  // not asked for
  CHECK(head() == before);
}

void each_call_of_v5() {
  void* const alone = group_api(1);
  CHECK(alone == nullptr);
  void* api = collective_api("AllReduce", 1000, "ncclFloat32", 0, &g_places[1], false, alone);
  recorded(Op::kAllReduce, 4000, -1, 9, 5, 0);
  CHECK(last().stream == 1 && last().group == 0 && last().flags == 0);
  const uint64_t before = head();
  CHECK(collective(5, 4, "AllReduce", 1000, 0, 7, "ncclFloat32", 2, api) == nullptr && head() == before);  // the same
  CHECK(table(5).stop(api) == 0);
  collective_api("Broadcast", 7, "ncclFloat64", 3, &g_places[2], true, alone);
  recorded(Op::kBroadcast, 56, 3, 10, 5, 1);
  CHECK(last().stream == 2 && last().flags == falcon::kCaptured);
  collective_api("AlltoAll", 5, "ncclInt32", 0, nullptr, false, alone);
  recorded(Op::kAllToAll, 160, -1, 3, 5, 2);  // to each of 8 ranks
  CHECK(last().stream == 0);
  const uint64_t whole = head();
  single(5, 6, "Send", 5, 1, 2, "ncclInt32");  // what it is made of is a part of it
  CHECK(head() == whole);
  collective_api("Gather", 5, "ncclUint32", 2, nullptr, false, alone);
  recorded(Op::kGather, 20, 2, 4, 5, 3);
  collective_api("Scatter", 5, "ncclUint64", 1, nullptr, false, alone);
  recorded(Op::kScatter, 40, 1, 6, 5, 4);
}

void a_group_of_v5_has_one_number() {
  void* group = group_api(2);
  void* send = single_api("Send", 3, "ncclFloat32", &g_places[1], false, group);
  void* receive = single_api("Recv", 3, "ncclFloat32", &g_places[2], true, group);
  const uint64_t before = head();
  single(5, 7, "Recv", 3, 4, 7, "ncclFloat32", receive);  // NCCL orders them as it likes
  recorded(Op::kRecv, 12, 4, 9, 5 | falcon::kPointToPoint, 0);
  CHECK(last().group == 1 && last().stream == 2 && last().flags == falcon::kCaptured);
  single(5, 6, "Send", 3, 6, 7, "ncclFloat32", send);
  recorded(Op::kSend, 12, 6, 9, 5 | falcon::kPointToPoint, 1);
  CHECK(last().group == 1 && last().stream == 1 && last().flags == 0);
  CHECK(head() == before + 3);                         // and the descriptor
  single(5, 6, "Send", 3, 6, 7, "ncclFloat32", send);  // its graph runs again
  CHECK(head() == before + 3);
  single_api("Send", 3, "ncclFloat32", &g_places[1], false, group);
  single(5, 6, "Send", 3, 6, 7, "ncclFloat32");  // a release that does not say which call it is of
  recorded(Op::kSend, 12, 6, 9, 5 | falcon::kPointToPoint, 2);
  CHECK(table(5).state(group, 23, nullptr) == 0 && table(5).stop(group) == 0);
  CHECK(group_api(2) != group);
}

struct Type {
  const char* name;  // as NCCL gives it
  uint8_t dtype;     // as a record has it
  uint64_t bytes;
};

// By ncclDataType_t's numbers. tests/integration/shim/test_nccl_releases.py asks real releases for the names.
constexpr Type kTypes[] = {
    {"ncclInt8", 1, 1},     {"Unknown", 2, 1},      {"ncclInt32", 3, 4},       {"ncclUint32", 4, 4},
    {"ncclInt64", 5, 8},    {"ncclUint64", 6, 8},   {"ncclFloat16", 7, 2},     {"ncclFloat32", 9, 4},
    {"ncclFloat64", 10, 8}, {"ncclBfloat16", 8, 2}, {"ncclFloat8e4m3", 11, 1}, {"ncclFloat8e5m2", 12, 1},
};

void each_type(int version) {
  uint8_t number = 0;
  for (const Type& type : kTypes) {
    if (version < 5) {
      collective(version, 4, "AllReduce", 3, 0, number, type.name);
    } else {
      collective_api("AllReduce", 3, type.name, 0, nullptr, false, nullptr);
    }
    CHECK(last().op == Op::kAllReduce && last().dtype == type.dtype && last().bytes == 3 * type.bytes);
    void* api = version < 5 ? nullptr : single_api("Send", 5, type.name, nullptr, false, nullptr);
    single(version, 6, "Send", 5, 1, number, type.name, api);
    CHECK(last().op == Op::kSend && last().dtype == type.dtype && last().bytes == 5 * type.bytes);
    ++number;
  }
}

void what_cannot_be_does_no_harm() {
  const uint64_t before = head();
  for (int version = 1; version <= 5; ++version) {
    void* handle = nullptr;
    CHECK(table(version).start(nullptr, &handle, nullptr) == 0 && handle == nullptr);
    CHECK(table(version).start(made(version).context, &handle, nullptr) == 0 && handle == nullptr);
    CHECK(table(version).start(made(version).context, nullptr, nullptr) == 0);
    CHECK(table(version).stop(nullptr) == 0 && table(version).state(nullptr, 3, nullptr) == 0);
    CHECK(table(version).stop(&g_places[0]) == 0 && table(version).finalize(nullptr) == 0);
    CHECK(started(version, 128, nullptr, {}) == nullptr);
  }
  CHECK(head() == before);
}

void a_communicator_ends() {
  for (int version = 1; version <= 5; ++version) {
    const uint64_t before = head();
    CHECK(table(version).finalize(made(version).context) == 0);
    CHECK(head() == before + 1 && last().kind == Kind::kDescriptor && last().flags == falcon::kEnded);
    CHECK(last().comm == static_cast<uint64_t>(version));
  }
}

// NCCL tells of a communicator of this size and rank, from its own code and maybe on its own thread. The context that
// the plugin takes; null: it leaves the communicator to the hooks.
void* told(int size, int rank, bool elsewhere) {
  void* context = &g_places[0];
  int mask = 0;
  const auto tell = [&] {
    CHECK(standin_init_profiler(reinterpret_cast<InitV5>(table(5).init), &context, &mask, size, rank) == 0);
  };
  if (elsewhere) {
    std::thread(tell).join();
  } else {
    tell();
  }
  CHECK((context == nullptr) == (mask == 0));
  return context;
}

// As PyTorch and pynccl (by dlsym) use one library in one process.
void whose_a_communicator_is_depends_on_who_makes_it() {
  static int left = 0;
  void* comm = nullptr;
  StandinUniqueId id{};
  standin_made = &g_places[9];
  standin_making = [] {
    left += told(4, 2, false) == nullptr ? 1 : 0;
    void* others = told(8, 3, true);  // meanwhile, made by nobody that the hooks see
    CHECK(others != nullptr && table(5).finalize(others) == 0);
  };
  CHECK(ncclCommInitRank(&comm, 4, id, 2) == 0 && left == 1);
  standin_making = nullptr;
  void* pynccl = told(4, 2, false);  // the same shape and library, not by a hooked call
  CHECK(pynccl != nullptr && last().kind == Kind::kDescriptor && last().group == 4);
  CHECK(table(5).finalize(pynccl) == 0 && last().flags == falcon::kEnded);
}

void a_communicator_is_made_when_its_group_ends_or_later() {
  void* comm = &g_places[10];
  StandinUniqueId id{};
  CHECK(ncclGroupStart() == 0 && ncclCommInitRankConfig(&comm, 4, id, 2, nullptr) == 0);
  standin_making = [] { CHECK(told(4, 2, true) == nullptr); };
  CHECK(ncclGroupEnd() == 0);
  standin_making = nullptr;
  standin_result = 7;  // it goes on after the call
  CHECK(ncclCommInitRankConfig(&comm, 4, id, 2, nullptr) == 7);
  standin_result = 0;
  CHECK(told(4, 2, true) == nullptr);
  standin_result = 2;
  CHECK(ncclCommInitRankConfig(&comm, 4, id, 2, nullptr) == 2);  // it failed before NCCL told of it
  standin_result = 0;
  void* pynccl = told(4, 2, true);
  CHECK(pynccl != nullptr && table(5).finalize(pynccl) == 0);
}

void the_communicators_of_several_devices_and_a_split() {
  void* all[3] = {};
  void* child = nullptr;
  const int list[3] = {0, 1, 2};
  standin_making = [] {
    for (int rank = 0; rank < 3; ++rank) CHECK(told(3, rank, true) == nullptr);
  };
  CHECK(ncclCommInitAll(all, 3, list) == 0);
  standin_making = [] { CHECK(told(2, 1, true) == nullptr); };
  CHECK(ncclCommSplit(&g_places[9], 1, 0, &child, nullptr) == 0);
  standin_making = nullptr;
  void* pynccl = told(3, 0, false);
  CHECK(pynccl != nullptr && table(5).finalize(pynccl) == 0);
}

void places_are_used_again() {
  for (int i = 0; i < 3000; ++i) {
    void* context = told(4, 2, false);
    CHECK(context != nullptr);
    CHECK(table(5).finalize(context) == 0);
  }
}

[[maybe_unused]] void a_process_without_a_place_for_rings_is_told_nothing() {
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("FALCON_RING_DIR");
    void* context = &g_places[0];
    int mask = 0;
    const int answer = reinterpret_cast<InitV4>(table(4).init)(&context, &mask, "x", 1, 1, 2, 0, nullptr);
    _exit(answer == 0 && context == nullptr && mask == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

}  // namespace

int main() {
  const std::string folder = make_places();
  if (folder.empty() || !open_plugin()) return 64;
  a_communicator_makes_a_rank(folder);
  for (int version = 1; version <= 4; ++version) each_call_before_v5(version);
  each_call_of_v5();
  a_group_of_v5_has_one_number();
  for (int version = 1; version <= 5; ++version) each_type(version);
  what_cannot_be_does_no_harm();
  a_communicator_ends();
  whose_a_communicator_is_depends_on_who_makes_it();
  a_communicator_is_made_when_its_group_ends_or_later();
  the_communicators_of_several_devices_and_a_split();
  places_are_used_again();
#ifndef FALCON_EMULATED
  a_process_without_a_place_for_rings_is_told_nothing();
#endif
  CHECK(rings(folder).size() == 1);
  remove_rings(folder);
  return failures == 0 ? 0 : 1;
}
