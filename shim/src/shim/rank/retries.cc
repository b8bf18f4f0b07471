#include "rank/retries.h"

#include <time.h>

#include <algorithm>
#include <cerrno>

#include "common/variables.h"
#include "rank/rank.h"

namespace falcon {
namespace {

constexpr uint64_t kSecond = 1000000000;
constexpr uint64_t kLongestPause = 4 * kSecond;
constexpr int kMostRetries = 10;  // spec.recovery.retries

void record(const Retry& retry) {
  Rank* rank = Rank::current();  // it is about to be one
  if (rank == nullptr || !rank->recording()) return;
  Record record{};
  record.t_start_ns = monotonic_ns();
  record.duration_ns = retry.pause_ns;
  record.bytes = retry.error;
  record.group = retry.nth;
  record.peer_or_root = retry.own_rank;
  record.flags = kFailed;
  record.kind = Kind::kRetry;
  rank->ring().append(record);
}

}  // namespace

uint32_t retries_allowed() { return static_cast<uint32_t>(std::min(read_number("FALCON_RETRIES", 0), kMostRetries)); }

uint64_t retry_pause_ns(uint32_t nth) {
  const uint64_t whole = std::min(kSecond << std::min(nth - 1, 8U), kLongestPause);
  const uint64_t mixed = monotonic_ns() * 0x9E3779B97F4A7C15ULL >> 54U;  // 0 … 1023
  return whole - whole / 4 + whole / 2 * mixed / 1024;
}

void wait_for_retry(const Retry& retry) {
  const int error = errno;
  record(retry);
  timespec left{static_cast<time_t>(retry.pause_ns / kSecond), static_cast<long>(retry.pause_ns % kSecond)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
  errno = error;
}

}  // namespace falcon
