// Mixture of experts, by the shim around a stand-in for NCCL (the real library needs a GPU): an all-to-all of unequal
// parts is a group of sends and receives. One record each, every count exact, whatever the number of peers and of
// communicators. CTest sets LD_PRELOAD, FALCON_RING_DIR and FALCON_CONTROL.
#include <chrono>
#include <string>
#include <thread>

#include "common/checking.h"
#include "common/own_rank.h"
#include "nccl/nccl_places.h"
#include "standins/standin_nccl.h"

using falcon::Kind;
using falcon::Op;
using falcon::Record;
using falcon::Traffic;

namespace {

constexpr int kExperts = 8;
constexpr int kOwn = 2;

const falcon::Counter* counter(uint64_t comm, Traffic traffic, int32_t peer) {
  const auto* counters = reinterpret_cast<const falcon::Counter*>(reinterpret_cast<const char*>(g_ring.header) +
                                                                  g_ring.header->counters_offset);
  const uint64_t key = comm << 40U | static_cast<uint64_t>(traffic) << 32U | static_cast<uint32_t>(peer);
  for (uint32_t at = 0; at < g_ring.header->counters; ++at) {
    if (counters[at].key.load() == key) return &counters[at];
  }
  return nullptr;
}

uint64_t entered(uint64_t comm, Traffic traffic, int32_t peer) {
  const falcon::Counter* found = counter(comm, traffic, peer);
  return found == nullptr ? 0 : found->entered.load();
}

// As PyTorch does it: nothing is sent where there is nothing to send.
void all_to_all(void* comm, int peers, int round) {
  ncclGroupStart();
  for (int peer = 0; peer < peers; ++peer) {
    const auto tokens = static_cast<size_t>((peer + round) % 3);
    if (tokens > 0) ncclSend(kSend, tokens, kBfloat16, peer, comm, kStream);
    ncclRecv(kRecv, 1, kBfloat16, peer, comm, kStream);
  }
  ncclGroupEnd();
}

void a_split_all_to_all_is_one_record() {
  for (uint32_t round = 0; round < 6; ++round) {
    const uint64_t before = head();
    all_to_all(kComm, kExperts, static_cast<int>(round));
    CHECK(head() == before + 1);
    const Record& record = last();
    CHECK(record.kind == Kind::kEnqueued && record.op == Op::kAllToAll && record.dtype == 8 && record.flags == 0);
    CHECK(record.comm == (1 | falcon::kExchange) && record.comm_seq == round && record.group != 0);
    CHECK(record.peer_or_root == kExperts && record.stream == 1);
    uint64_t sent = 0;
    for (uint32_t peer = 0; peer < kExperts; ++peer) sent += (peer + round) % 3;
    CHECK(record.bytes == 2 * (sent + kExperts) && falcon::check_of(record) == record.check);
  }
  for (int peer = 0; peer < kExperts; ++peer) {
    CHECK(entered(1, Traffic::kSend, peer) == 4 && entered(1, Traffic::kRecv, peer) == 6);
  }
  CHECK(counter(1, Traffic::kCollective, 0) == nullptr);  // who sends nothing makes no call: others could not agree
}

void a_rank_that_has_little_to_send_makes_the_same_record() {
  const uint64_t before = head();
  CHECK(ncclGroupStart() == 0 && ncclSend(kSend, 5, kFloat32, 3, kComm, kStream) == 0);
  CHECK(head() == before);
  CHECK(ncclGroupEnd() == 0);
  CHECK(head() == before + 1 && last().op == Op::kAllToAll && last().peer_or_root == 1 && last().bytes == 20);
}

void a_pipeline_keeps_its_sends_and_receives() {
  void* pipeline = pointer(0xC800);
  for (uint32_t round = 0; round < 3; ++round) {
    const uint64_t before = head();
    ncclGroupStart();
    for (const int peer : {kOwn - 1, kOwn + 1}) {
      ncclSend(kSend, 7, kFloat32, peer, pipeline, kStream);
      ncclRecv(kRecv, 9, kFloat32, peer, pipeline, kStream);
    }
    ncclGroupEnd();
    CHECK(head() == before + (round == 0 ? 6 : 4));  // at first also what they are
    for (uint32_t back = 0; back < 4; ++back) {
      const Record& record = last(back);
      CHECK(record.op == (back % 2 == 0 ? Op::kRecv : Op::kSend) && record.bytes == (back % 2 == 0 ? 36 : 28));
      CHECK(record.peer_or_root == (back < 2 ? kOwn + 1 : kOwn - 1) && record.comm_seq == 4 * round + 3 - back);
      CHECK(record.comm == (2 | falcon::kPointToPoint) && record.group == last().group);
    }
  }
}

// As PyTorch gathers and scatters.
void a_root_keeps_its_receives() {
  void* gathering = pointer(0xCA00);
  const uint64_t before = head();
  ncclGroupStart();
  for (int peer = 0; peer < kExperts; ++peer) ncclRecv(kRecv, 9, kFloat32, peer, gathering, kStream);
  ncclGroupEnd();
  CHECK(records(Kind::kEnqueued, before) == kExperts && last().op == Op::kRecv && last().comm_seq == kExperts - 1);
}

void more_calls_than_a_thread_remembers_leave_a_record_each() {
  const uint64_t before = head();
  ncclGroupStart();
  for (int i = 0; i < 100; ++i) ncclSend(kSend, 1, kFloat32, kOwn + 1, pointer(0xC800), kStream);
  ncclGroupEnd();
  CHECK(records(Kind::kEnqueued, before) == 100 && entered(2, Traffic::kSend, kOwn + 1) == 103);
}

void two_communicators_in_one_group() {
  const uint64_t before = head();
  ncclGroupStart();
  ncclSend(kSend, 7, kFloat32, kOwn + 1, pointer(0xC800), kStream);
  for (int peer = 0; peer < kExperts; ++peer) ncclSend(kSend, 1, kFloat32, peer, kComm, kOther);
  ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, kComm, kStream);
  ncclGroupEnd();
  CHECK(head() == before + 3 && last(2).op == Op::kAllReduce && last(1).op == Op::kSend);
  CHECK(last().op == Op::kAllToAll && last().bytes == 4 * kExperts && last().stream == 2);
}

void no_count_is_lost_however_many_peers() {
  constexpr int kPeers = 2048;
  void* large = pointer(0xC900);
  standin_size = kPeers;
  for (int round = 0; round < 2; ++round) {
    const uint64_t before = head();
    ncclGroupStart();
    for (int peer = 0; peer < kPeers; ++peer) {
      ncclSend(kSend, 1, kFloat32, peer, large, kStream);
      ncclRecv(kRecv, 1, kFloat32, peer, large, kStream);
    }
    ncclGroupEnd();
    CHECK(records(Kind::kEnqueued, before) == 1 && last().peer_or_root == kPeers);
  }
  for (int peer = 0; peer < kPeers; ++peer) {
    CHECK(entered(4, Traffic::kSend, peer) == 2 && entered(4, Traffic::kRecv, peer) == 2);
  }
  CHECK(ncclCommDestroy(large) == 0);
  CHECK(counter(4, Traffic::kSend, 5) == nullptr);  // its counters are others' now
  standin_size = 4;
}

void the_places_of_communicators_are_used_again() {
  StandinUniqueId id{};
  for (uint64_t i = 0; i < 5000; ++i) {
    void* comm = nullptr;
    standin_made = pointer(0x1000 + i % 16);
    CHECK(ncclCommInitRank(&comm, 4, id, kOwn) == 0 && last().kind == Kind::kDescriptor);
    const uint64_t number = 5 + i;
    CHECK(last().comm == number);
    CHECK(ncclAllReduce(kSend, kRecv, 1, kFloat32, 0, comm, kStream) == 0);
    CHECK(last().comm == number && last().comm_seq == 0);
    CHECK(entered(number, Traffic::kCollective, 0) == 1);
    CHECK(ncclCommDestroy(comm) == 0 && last().flags == falcon::kEnded && last().comm == number);
  }
  CHECK(entered(1, Traffic::kSend, 3) > 0);  // who lives keeps the counts
  all_to_all(kComm, kExperts, 1);
  CHECK(last().comm == (1 | falcon::kExchange));
}

void the_device_times_an_exchange_as_one() {
  set_mode(falcon::Mode::kProfile);
  __atomic_store_n(&standin_device_done, true, __ATOMIC_RELEASE);
  standin_elapsed_ms = 4;
  for (int i = 0; i < 2000 && standin_events_recorded == 0; ++i) {
    all_to_all(kComm, kExperts, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const uint64_t before = head();
  const int events = standin_events_recorded;
  all_to_all(kComm, kExperts, 1);
  CHECK(standin_events_recorded == events + 2);
  for (int i = 0; i < 2000 && records(Kind::kCompleted, before) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(last().kind == Kind::kCompleted && last().comm == (1 | falcon::kExchange) && last().duration_ns == 4000000);
  CHECK(last().op == Op::kAllToAll);
  set_mode(falcon::Mode::kTrack);
}

}  // namespace

int main() {
  const std::string folder = make_places();
  if (folder.empty()) return 64;
  puts(ncclGetLastError(nullptr));
  void* comm = nullptr;
  standin_made = kComm;
  CHECK(ncclCommInitRank(&comm, kExperts, StandinUniqueId{}, kOwn) == 0);
  g_ring = view(rings(folder)[0]);
  a_split_all_to_all_is_one_record();
  a_rank_that_has_little_to_send_makes_the_same_record();
  a_pipeline_keeps_its_sends_and_receives();
  more_calls_than_a_thread_remembers_leave_a_record_each();
  two_communicators_in_one_group();
  a_root_keeps_its_receives();
  the_device_times_an_exchange_as_one();
  no_count_is_lost_however_many_peers();
  the_places_of_communicators_are_used_again();
  remove_rings(folder);
  return failures == 0 ? 0 : 1;
}
