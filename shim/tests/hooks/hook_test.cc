// The whole shim around a stand-in for Gloo: preloaded into this program as it is into a training process.
// hook_test FOLDER (an empty folder for rings; LD_PRELOAD and FALCON_RING_DIR are set by CTest).
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/checking.h"
#include "standins/standin_gloo.h"

namespace {

const gloo::StandinContext kWorld{1, 4, 2};
const gloo::StandinContext kPair{0, 2, 2};

void forwards_and_records(const std::string& folder) {
  CHECK(rings(folder).empty());  // nothing before the first collective
  const gloo::AllreduceOptions options{&kWorld, {}, 1000, 4};
  errno = ERANGE;
  gloo::allreduce(options);
  CHECK(errno == ERANGE);
  CHECK(gloo::standin_calls == 1 && gloo::standin_argument == &options);
  gloo::standin_errno = EIO;
  gloo::allreduce(options);
  CHECK(errno == EIO);  // what the original leaves behind is what its caller sees
  gloo::standin_errno = 0;
  const std::vector<std::string> files = rings(folder);
  CHECK(files.size() == 1);
  if (files.size() != 1) return;
  const View ring = view(files[0]);
  CHECK(ring.header->head.load() == 3);
  CHECK(ring.slots[0].kind == falcon::Kind::kDescriptor && ring.slots[0].comm == 1 && ring.slots[0].group == 4 &&
        ring.slots[0].peer_or_root == 1);
  for (int i = 1; i < 3; ++i) {
    const falcon::Record& record = ring.slots[i];
    CHECK(record.kind == falcon::Kind::kBlocking && record.op == falcon::Op::kAllReduce && record.bytes == 4000);
    CHECK(record.comm == 1 && record.comm_seq == static_cast<uint32_t>(i - 1) && record.flags == 0);
    CHECK(record.seq == static_cast<uint64_t>(i) + 1 && falcon::check_of(record) == record.check);
  }
}

[[maybe_unused]] void an_exception_passes(const View& ring) {
  const gloo::AllreduceOptions options{&kWorld, {}, 10, 8};
  const uint64_t before = ring.header->head.load();
  gloo::standin_throws = true;
  int caught = 0;
  try {
    gloo::allreduce(options);
  } catch (const std::runtime_error&) {
    caught = 42;
  }
  gloo::standin_throws = false;
  CHECK(caught == 42);
  CHECK(ring.header->head.load() == before + 1);
  CHECK(ring.slots[before].flags == falcon::kFailed && ring.slots[before].bytes == 80);
}

void another_group_is_another_communicator(const View& ring) {
  gloo::BarrierOptions options{&kPair};
  const uint64_t before = ring.header->head.load();
  gloo::barrier(options);
  CHECK(ring.header->head.load() == before + 2);
  CHECK(ring.slots[before].kind == falcon::Kind::kDescriptor && ring.slots[before].group == 2);
  CHECK(ring.slots[before + 1].op == falcon::Op::kBarrier && ring.slots[before + 1].comm == 2);
}

void threads_lose_nothing(const View& ring) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 2000;
  const uint64_t before = ring.header->head.load();
  const uint64_t calls = gloo::standin_calls;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([] {
      const gloo::AllreduceOptions options{&kWorld, {}, 7, 4};
      for (int call = 0; call < kCalls; ++call) gloo::allreduce(options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(gloo::standin_calls == calls + kThreads * kCalls);
  CHECK(ring.header->head.load() == before + kThreads * kCalls);
  std::vector<bool> seen(kThreads * kCalls, false);
  uint32_t first = UINT32_MAX;
  for (uint64_t i = before; i < before + kThreads * kCalls; ++i) {
    if (ring.slots[i].comm_seq < first) first = ring.slots[i].comm_seq;
  }
  for (uint64_t i = before; i < before + kThreads * kCalls; ++i) {
    const falcon::Record& record = ring.slots[i];
    CHECK(record.seq == i + 1 && falcon::check_of(record) == record.check);
    const uint32_t number = record.comm_seq - first;
    CHECK(number < seen.size() && !seen[number]);
    if (number < seen.size()) seen[number] = true;
  }
}

[[maybe_unused]] void a_forked_child_writes_nothing_of_its_parents(const std::string& folder, const View& ring) {
  const uint64_t before = ring.header->head.load();
  const pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(ring.header->head.load() == before);
  CHECK(rings(folder).size() == 1);
  // A child that itself calls a collective is a rank of its own.
  const pid_t rank = fork();
  if (rank == 0) {
    const gloo::AllreduceOptions options{&kWorld, {}, 1, 4};
    gloo::allreduce(options);
    _exit(0);
  }
  CHECK(waitpid(rank, &status, 0) == rank && status == 0);
  CHECK(ring.header->head.load() == before);
  CHECK(rings(folder).size() == 2);
}

struct Launcher {
  std::vector<std::pair<const char*, const char*>> variables;
  int rank, size, local_rank;
};

// A child with these variables alone is this rank.
[[maybe_unused]] void any_launchers_variables_name_the_rank(const std::string& folder) {
  const std::vector<Launcher> launchers = {
      {{}, -1, -1, -1},
      {{{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"SLURM_PROCID", "0"}}, 3, 8, 1},
      {{{"OMPI_COMM_WORLD_RANK", "4"},
        {"OMPI_COMM_WORLD_SIZE", "8"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
        {"PMIX_RANK", "4"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "2"}},
       4,
       8,
       2},
      {{{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}, {"MPI_LOCALRANKID", "0"}, {"SLURM_PROCID", "1"}}, 5, 6, 0},
      {{{"PMIX_RANK", "6"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}, 6, -1, -1},
      {{{"SLURM_PROCID", "7"}, {"SLURM_NTASKS", "9"}, {"SLURM_LOCALID", "3"}}, 7, 9, 3},
      {{{"RANK", ""}, {"PMI_RANK", "no number"}, {"SLURM_PROCID", "1"}}, 1, -1, -1},
  };
  for (const Launcher& launcher : launchers) {
    for (const std::string& old : rings(folder)) unlink(old.c_str());
    const pid_t child = fork();
    if (child == 0) {
      for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}) {
        unsetenv(name);
      }
      for (const auto& [name, value] : launcher.variables) setenv(name, value, 1);
      const gloo::AllreduceOptions options{&kWorld, {}, 1, 4};
      gloo::allreduce(options);
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    const std::vector<std::string> made = rings(folder);
    CHECK(made.size() == 1);
    if (made.size() != 1) return;
    const falcon::RingHeader& header = *view(made[0]).header;
    CHECK(header.rank == launcher.rank && header.world_size == launcher.size &&
          header.local_rank == launcher.local_rank);
  }
}

// Where a peer cannot be reached, Gloo tells its logger and connects again: there the thread waits, and says so.
void a_connection_that_is_tried_again_waits(const View& ring) {
  using gloo::transport::tcp::ConnectDebugData;
  using gloo::transport::tcp::DebugLogger;
  const auto retries = [&](const ConnectDebugData& told) {
    const uint64_t before = ring.header->head.load();
    const uint64_t calls = gloo::standin_calls;
    DebugLogger::log(told);
    CHECK(gloo::standin_calls == calls + 1 && gloo::standin_argument == &told);
    return ring.header->head.load() - before;
  };
  const ConnectDebugData first{1, 3, true, 1, 2};
  CHECK(retries(first) == 0);  // nobody has asked for it
  setenv("FALCON_RETRIES", "1", 1);
  CHECK(retries(first) == 1);
  const falcon::Record& last = ring.slots[(ring.header->head.load() - 1) % ring.header->capacity];
  CHECK(last.kind == falcon::Kind::kRetry && last.group == 1 && last.peer_or_root == 1 && last.bytes == 0);
  CHECK(last.duration_ns >= 750000000 && last.duration_ns <= 1250000000 && falcon::check_of(last) == last.check);
  CHECK(retries({2, 3, true, 1, 2}) == 0);   // beyond what is asked for
  CHECK(retries({1, 3, false, 1, 2}) == 0);  // Gloo gives up
  CHECK(retries({1, 3, true, 2, 2}) == 0);   // of a release with another layout
  unsetenv("FALCON_RETRIES");
}

}  // namespace

int main() {
  const char* named = getenv("FALCON_RING_DIR");
  if (named == nullptr) return 64;
  const std::string folder = named;
  mkdir(folder.c_str(), 0755);
  for (const std::string& old : rings(folder)) unlink(old.c_str());
  forwards_and_records(folder);
  const std::vector<std::string> files = rings(folder);
  if (files.size() != 1) return 1;
  const View ring = view(files[0]);
#ifndef FALCON_EMULATED
  an_exception_passes(ring);
#endif
  another_group_is_another_communicator(ring);
  threads_lose_nothing(ring);
  a_connection_that_is_tried_again_waits(ring);
#ifndef FALCON_EMULATED
  a_forked_child_writes_nothing_of_its_parents(folder, ring);
  any_launchers_variables_name_the_rank(folder);
#endif
  for (const std::string& path : rings(folder)) unlink(path.c_str());
  rmdir(folder.c_str());
  return failures == 0 ? 0 : 1;
}
