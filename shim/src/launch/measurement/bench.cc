#include "measurement/bench.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "common/clock.h"

namespace falcon {
namespace {

constexpr int kSize = 256;                  // three such matrices fit into a core's own cache
constexpr int kBlock = 64;                  // rows of `right` that are used again while they are in the nearest cache
constexpr int kRows[] = {0, 1, kSize - 1};  // compared with double precision
constexpr double kTolerance = 1e-4;         // of the largest entry
constexpr size_t kCopied = 64 << 20;        // by all threads
constexpr size_t kLeastCopied = 1 << 20;    // by one
constexpr size_t kMostThreads = 256;
constexpr int kSmokeSize = 128;  // less than a millisecond each, so that many fit into a window
constexpr int kWindowsASecond = 10;
constexpr int64_t kWindowNs = kSecondNs / kWindowsASecond;
constexpr size_t kWindows = 2;

size_t permitted_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  const int count = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 0;
  const size_t known = count > 0 ? static_cast<size_t>(count) : std::max(1U, std::thread::hardware_concurrency());
  return std::min(known, kMostThreads);
}

// Repeats `work` for so long; how often a second in the second half: the first heats.
double rate(int64_t nanoseconds, const std::function<void()>& work) {
  const int64_t began = monotonic_ns();
  const int64_t middle = began + nanoseconds / 2;
  int64_t counted_from = 0;
  int count = 0;
  int64_t now = began;
  while (now < began + nanoseconds || count == 0) {
    work();
    now = monotonic_ns();
    if (counted_from != 0) {
      ++count;
    } else if (now >= middle) {
      counted_from = now;
    }
  }
  return count * static_cast<double>(kSecondNs) / static_cast<double>(std::max<int64_t>(1, now - counted_from));
}

// The sum of what all threads return, each on its own data.
double on_all_cpus(const std::function<double(size_t)>& work) {
  const size_t count = permitted_cpus();
  std::vector<double> found(count);
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (size_t at = 0; at < count; ++at) threads.emplace_back([&, at] { found[at] = work(at); });
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (const double each : found) sum += each;
  return sum;
}

std::vector<float> random_matrix(unsigned seed, int size) {
  std::minstd_rand random(seed + 1);
  std::uniform_real_distribution<float> entries(-1, 1);
  std::vector<float> out(static_cast<size_t>(size) * static_cast<size_t>(size));
  for (float& entry : out) entry = entries(random);
  return out;
}

std::string problem_json(double error) {
  char problem[96] = "";
  if (error > kTolerance)
    snprintf(problem, sizeof(problem), "\"the CPU: its fp32 products are wrong: by %.2g of the largest entry\"", error);
  return problem;
}

}  // namespace

void multiply(const std::vector<float>& left, const std::vector<float>& right, std::vector<float>* out, int size) {
  const auto width = static_cast<size_t>(size);
  std::fill(out->begin(), out->end(), 0.0F);
  for (size_t block = 0; block < width; block += kBlock) {
    const size_t end = std::min(width, block + kBlock);
    for (size_t row = 0; row < width; ++row) {
      float* target = out->data() + row * width;
      for (size_t inner = block; inner < end; ++inner) {
        const float factor = left[row * width + inner];
        const float* source = right.data() + inner * width;
        for (size_t column = 0; column < width; ++column) target[column] += factor * source[column];
      }
    }
  }
}

double error_of(const std::vector<float>& left, const std::vector<float>& right, const std::vector<float>& out,
                int size) {
  const auto width = static_cast<size_t>(size);
  double largest = 0;
  double wrong = 0;
  for (const int row : kRows) {
    for (size_t column = 0; row < size && column < width; ++column) {
      double exact = 0;
      for (size_t inner = 0; inner < width; ++inner)
        exact += static_cast<double>(left[static_cast<size_t>(row) * width + inner]) * right[inner * width + column];
      largest = std::max(largest, std::abs(exact));
      const double differs = std::abs(exact - out[static_cast<size_t>(row) * width + column]);
      wrong = std::max(wrong, std::isnan(differs) ? std::numeric_limits<double>::infinity() : differs);
    }
  }
  return largest > 0 ? wrong / largest : wrong;
}

std::string bench_json(int milliseconds) {
  const int64_t nanoseconds = static_cast<int64_t>(milliseconds) * (kSecondNs / 1000);
  const size_t bytes = std::max(kLeastCopied, kCopied / permitted_cpus());
  const double copies = on_all_cpus([&](size_t) {
    std::vector<char> from(bytes, 1);
    std::vector<char> to(bytes);
    return rate(nanoseconds / 4, [&] {
      memcpy(to.data(), from.data(), bytes);
      from[0] = to[bytes - 1];  // so that no copy is left out
    });
  });
  std::vector<double> errors(permitted_cpus());
  const double products = on_all_cpus([&](size_t at) {
    const std::vector<float> left = random_matrix(static_cast<unsigned>(2 * at), kSize);
    const std::vector<float> right = random_matrix(static_cast<unsigned>(2 * at + 1), kSize);
    std::vector<float> first(left.size());
    multiply(left, right, &first, kSize);
    std::vector<float> out(left.size());
    const double found = rate(nanoseconds / 4 * 3, [&] { multiply(left, right, &out, kSize); });
    const bool same = memcmp(first.data(), out.data(), out.size() * sizeof(float)) == 0;
    if (at < errors.size()) errors[at] = same ? error_of(left, right, out, kSize) : 1;
    return found;
  });
  double worst = 0;
  for (const double error : errors) worst = std::max(worst, error);
  const std::string problem = problem_json(worst);
  char text[512];
  snprintf(text, sizeof(text),
           "{\"backend\":\"falcon-launch\",\"scores\":{\"copy\":%.4g,\"fp32\":%.4g},\"devices\":[{\"name\":\"CPU\"}],"
           "\"problems\":[%s]}\n",
           2.0 * static_cast<double>(bytes) * copies / 1e9, 2.0 * kSize * kSize * kSize * products / 1e12,
           problem.c_str());
  return text;
}

std::string smoke_json() {
  const size_t cpus = permitted_cpus();
  std::vector<std::array<int, kWindows>> counts(cpus);
  std::vector<double> errors(cpus);
  on_all_cpus([&](size_t at) {
    if (at >= cpus) return 0.0;  // more are permitted by now
    const std::vector<float> left = random_matrix(static_cast<unsigned>(2 * at), kSmokeSize);
    const std::vector<float> right = random_matrix(static_cast<unsigned>(2 * at + 1), kSmokeSize);
    std::vector<float> out(left.size());
    multiply(left, right, &out, kSmokeSize);
    const int64_t began = monotonic_ns();
    for (;;) {
      multiply(left, right, &out, kSmokeSize);
      const auto window = static_cast<size_t>((monotonic_ns() - began) / kWindowNs);
      if (window >= kWindows) break;
      ++counts[at][window];
    }
    errors[at] = error_of(left, right, out, kSmokeSize);
    return 0.0;
  });
  std::array<int, kWindows> sums{};
  for (const auto& each : counts) {
    for (size_t window = 0; window < kWindows; ++window) sums[window] += each[window];
  }
  const double a_second = *std::max_element(sums.begin(), sums.end()) * static_cast<double>(kWindowsASecond);
  char text[512];
  snprintf(text, sizeof(text),
           "{\"backend\":\"falcon-launch\",\"scores\":{\"fp32\":%.4g},\"devices\":[{\"name\":\"%zu CPUs\"}],"
           "\"problems\":[%s]}\n",
           2.0 * kSmokeSize * kSmokeSize * kSmokeSize * a_second / 1e12, cpus,
           problem_json(*std::max_element(errors.begin(), errors.end())).c_str());
  return text;
}

}  // namespace falcon
