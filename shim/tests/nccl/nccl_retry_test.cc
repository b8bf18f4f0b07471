// Which failed set-up calls of a communicator are tried again in place, around a stand-in for NCCL (it is one: the real
// library makes no communicator without a GPU). Its words are those of releases 2.18 to 2.32. CTest sets LD_PRELOAD,
// FALCON_RING_DIR and FALCON_CONTROL.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

#include "common/checking.h"
#include "common/own_rank.h"
#include "nccl/nccl_places.h"
#include "standins/standin_nccl.h"

using falcon::Kind;

namespace {

constexpr int kSystemError = 2;
constexpr int kInternalError = 3;
constexpr int kRemoteError = 6;
constexpr const char* kRefused = "socketStartConnect: Connect to 192.0.2.7<40001> failed : Network is unreachable";
constexpr const char* kExceeded =
    "ncclOsSocketPollConnect: connect to 192.0.2.7<40001> returned No route to host, exceeded error retry count after 3"
    " attempts";

// As NCCL writes it: a number, then the address of the root.
StandinUniqueId id_of_root(size_t offset = 8) {
  StandinUniqueId id{};
  sockaddr_in root{};
  root.sin_family = AF_INET;
  root.sin_port = htons(40001);
  inet_pton(AF_INET, "192.0.2.7", &root.sin_addr);
  memcpy(id.internal + offset, &root, sizeof(root));
  return id;
}

StandinUniqueId id_of_root_v6() {
  StandinUniqueId id{};
  sockaddr_in6 root{};
  root.sin6_family = AF_INET6;
  root.sin6_port = htons(40001);
  inet_pton(AF_INET6, "2001:db8::7", &root.sin6_addr);
  memcpy(id.internal + 8, &root, sizeof(root));
  return id;
}

struct Tried {
  int result;
  uint64_t calls;
  uint64_t retries;  // recorded
};

// Makes a communicator while the stand-in fails in this way.
template <typename Call>
Tried tried(StandinFailure first, StandinFailure second, Call call) {
  const uint64_t before = g_ring.header == nullptr ? 0 : head();
  standin_failures[0] = first;
  standin_failures[1] = second;
  const uint64_t calls = standin_call.calls;
  const int result = call();
  standin_failures[0] = standin_failures[1] = {};
  return {result, standin_call.calls - calls, g_ring.header == nullptr ? 0 : records(Kind::kRetry, before)};
}

Tried tried(StandinFailure first, StandinFailure second = {}, StandinUniqueId id = id_of_root()) {
  void* comm = nullptr;
  return tried(first, second, [&] { return ncclCommInitRank(&comm, 4, id, 2); });
}

bool is(const Tried& what, int result, uint64_t calls) {
  return what.result == result && what.calls == calls && (g_ring.header == nullptr || what.retries == calls - 1);
}

void without_leave_nothing_is_tried_again(const std::string& folder) {
  unsetenv("FALCON_RETRIES");
  CHECK(is(tried({kSystemError, kRefused}), kSystemError, 1));
  for (const char* none : {"", "0", "-1", "three"}) {
    setenv("FALCON_RETRIES", none, 1);
    CHECK(is(tried({kSystemError, kRefused}), kSystemError, 1));
  }
  CHECK(rings(folder).empty());
}

void a_root_that_was_not_reached_is_tried_again(const std::string& folder) {
  setenv("FALCON_RETRIES", "2", 1);
  standin_made = kComm;
  CHECK(is(tried({kSystemError, kRefused}, {kRemoteError, kExceeded}), 0, 3));
  CHECK(strcmp(standin_call.name, "ncclCommInitRank") == 0 && standin_call.twin && standin_call.arguments[1] == 4 &&
        standin_call.arguments[3] == 2);
  CHECK(rings(folder).size() == 1);
  g_ring = view(rings(folder)[0]);
  CHECK(head() == 3 && last().kind == Kind::kDescriptor && last().comm == 1);
  CHECK(last(2).kind == Kind::kRetry && last(2).bytes == kSystemError && last(2).group == 1);
  CHECK(last(1).kind == Kind::kRetry && last(1).bytes == kRemoteError && last(1).group == 2);
  CHECK(last(1).peer_or_root == 2 && last(1).flags == falcon::kFailed && last(1).comm == 0);
  CHECK(last(1).duration_ns > last(2).duration_ns);
}

void as_often_as_it_may_be_and_no_more() {
  setenv("FALCON_RETRIES", "1", 1);
  CHECK(is(tried({kSystemError, kRefused}, {kSystemError, kRefused}), kSystemError, 2));
}

void each_way_of_making_one_and_of_naming_its_root() {
  void* comm = nullptr;
  StandinUniqueId id = id_of_root();
  const StandinFailure refused{kSystemError, kRefused};
  CHECK(is(tried(refused, {}, [&] { return ncclCommInitRankConfig(&comm, 4, id, 2, nullptr); }), 0, 2));
  CHECK(is(tried(refused, {}, [&] { return ncclCommInitRankScalable(&comm, 4, 2, 1, &id, nullptr); }), 0, 2));
  CHECK(is(tried(refused, {}, id_of_root(0)), 0, 2));  // before release 2.14
  const StandinFailure unreachable{kSystemError, "Connect to 2001:db8::7<40001> failed : Network is unreachable"};
  CHECK(is(tried(unreachable, {}, id_of_root_v6()), 0, 2));
}

void what_may_have_reached_its_root_is_not_tried_again() {
  const char* of_others[] = {
      "socketStartConnect: Connect to 192.0.2.7<40002> failed : Connection refused",
      "socketStartConnect: Connect to 192.0.2.70<40001> failed : Connection refused",
      "socketProgress: Connection closed by remote peer 192.0.2.7<40001>",
      "socketPollConnect: connect returned Connection refused, exceeded error retry count (35)",
      "",
  };
  for (const char* words : of_others) CHECK(is(tried({kRemoteError, words}), kRemoteError, 1));
  CHECK(is(tried({kInternalError, kRefused}), kInternalError, 1));
  StandinUniqueId unknown{};
  CHECK(is(tried({kSystemError, kRefused}, {}, unknown), kSystemError, 1));
  // The first try's words must not be taken for the second's.
  CHECK(is(tried({kSystemError, kRefused}, {kSystemError, nullptr}), kSystemError, 2));
}

void where_a_call_is_not_this_ranks_alone_it_is_left_alone() {
  void* comm = nullptr;
  StandinUniqueId ids[2] = {id_of_root(), id_of_root()};
  const StandinFailure refused{kSystemError, kRefused};
  CHECK(
      is(tried(refused, {}, [&] { return ncclCommInitRankScalable(&comm, 4, 2, 2, ids, nullptr); }), kSystemError, 1));
  CHECK(is(tried(refused, {}, [&] { return ncclCommSplit(kComm, 0, 0, &comm, nullptr); }), kSystemError, 1));
  CHECK(ncclGroupStart() == 0);
  CHECK(is(tried(refused), kSystemError, 1));
  CHECK(ncclGroupEnd() == 0);
  setenv("NCCL_COMM_ID", "192.0.2.7:40001", 1);
  CHECK(is(tried(refused), kSystemError, 1));
  unsetenv("NCCL_COMM_ID");
}

}  // namespace

int main() {
  const std::string folder = make_places();
  if (folder.empty()) return 64;
  puts(ncclGetLastError(nullptr));
  without_leave_nothing_is_tried_again(folder);
  a_root_that_was_not_reached_is_tried_again(folder);
  as_often_as_it_may_be_and_no_more();
  each_way_of_making_one_and_of_naming_its_root();
  what_may_have_reached_its_root_is_not_tried_again();
  where_a_call_is_not_this_ranks_alone_it_is_left_alone();
  remove_rings(folder);
  return failures == 0 ? 0 : 1;
}
