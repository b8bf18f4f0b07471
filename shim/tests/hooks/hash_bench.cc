// hash_bench ROUNDS: how fast results are hashed. Prints, as JSON, gigabytes a second of CPU time by the buffer's size:
// of the hash, and of reading the same buffer word by word, in turns; medians over the rounds.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/hash.h"

namespace {

constexpr size_t kSizes[] = {size_t{4} << 10U, size_t{256} << 10U, size_t{25} << 20U, size_t{64} << 20U};
constexpr size_t kAtOnce = size_t{64} << 20U;  // bytes of a round

// Of this thread: other work on the machine takes none of it.
uint64_t cpu_ns() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<uint64_t>(used.tv_sec) * 1000000000ULL + static_cast<uint64_t>(used.tv_nsec);
}

uint64_t read_words(const void* data, size_t bytes) {
  uint64_t sum = 0;
  const auto* words = static_cast<const uint64_t*>(data);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) sum += words[i];
  return sum;
}

template <typename Work>
double gigabytes_a_second(size_t bytes, Work work) {
  const uint64_t start = cpu_ns();
  for (size_t done = 0; done < kAtOnce; done += bytes) work();
  const size_t times = (kAtOnce + bytes - 1) / bytes;
  return static_cast<double>(bytes * times) / static_cast<double>(cpu_ns() - start);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  const long rounds = strtol(argv[1], nullptr, 10);
  std::vector<uint64_t> buffer(kAtOnce / sizeof(uint64_t));
  for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = i * 0x9E3779B97F4A7C15ULL;
  volatile uint64_t sink = 0;
  const char* separator = "{";
  for (const size_t bytes : kSizes) {
    std::vector<double> hashed;
    std::vector<double> read;
    for (long round = 0; round < rounds; ++round) {
      hashed.push_back(gigabytes_a_second(bytes, [&] { sink = sink + falcon::hash_bytes(buffer.data(), bytes); }));
      read.push_back(gigabytes_a_second(bytes, [&] { sink = sink + read_words(buffer.data(), bytes); }));
    }
    printf("%s\"%zu\": {\"hash\": %.2f, \"read\": %.2f}", separator, bytes, median(hashed), median(read));
    separator = ", ";
  }
  printf("}\n");
  return 0;
}
