// ring_stress FOLDER THREADS RECORDS CAPACITY: every thread appends RECORDS records (0: until killed); prints the path.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "common/ring.h"

int main(int argc, char** argv) {
  if (argc != 5) return 64;
  const std::string folder = argv[1];
  const int threads = static_cast<int>(strtol(argv[2], nullptr, 10));
  const unsigned long records = strtoul(argv[3], nullptr, 10);
  const std::string path = folder + "/stress.ring";
  alignas(falcon::Ring) static char storage[sizeof(falcon::Ring)];
  const falcon::RingIdentity identity{static_cast<uint32_t>(getpid()), 7, 3, 8, 1};
  falcon::Ring* ring = falcon::Ring::create(folder.c_str(), path.c_str(), identity,
                                            static_cast<uint32_t>(strtoul(argv[4], nullptr, 10)), storage);
  if (ring == nullptr) return 1;
  printf("%s\n", path.c_str());
  fflush(stdout);
  std::vector<std::thread> writers;
  writers.reserve(static_cast<size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) {
    writers.emplace_back([=] {
      // Its collectives, as the hooks count them: communicator, kind 1, no peer.
      falcon::Counter* counter = ring->counter(static_cast<uint64_t>(thread + 1) << 40U | 1ULL << 32U);
      for (unsigned long i = 0; records == 0 || i < records; ++i) {
        falcon::Record record{};
        record.comm = static_cast<uint64_t>(thread) + 1;
        record.comm_seq = static_cast<uint32_t>(i);
        record.bytes = record.comm * 1000003 + record.comm_seq;  // a torn record would not add up
        record.op = falcon::Op::kAllReduce;
        record.kind = falcon::Kind::kBlocking;
        counter->entered.fetch_add(1, std::memory_order_acq_rel);
        ring->append(record);
        counter->finished.fetch_add(1, std::memory_order_release);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  return 0;
}
