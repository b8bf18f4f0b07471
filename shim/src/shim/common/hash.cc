#include "common/hash.h"

#include <cstring>
#include <initializer_list>

namespace falcon {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ULL;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ULL;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ULL;
constexpr size_t kStripe = 32;  // bytes: a word for each of four sums, which do not wait for each other

template <typename T>
T load(const unsigned char* at) {
  T value;
  memcpy(&value, at, sizeof(value));
  return value;
}

constexpr uint64_t rotated(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

constexpr uint64_t added(uint64_t sum, uint64_t word) { return rotated(sum + word * kPrime2, 31) * kPrime1; }

constexpr uint64_t merged(uint64_t sum, uint64_t part) { return (sum ^ added(0, part)) * kPrime1 + kPrime4; }

// Fewer than kStripe bytes, and the last mixing.
uint64_t finished(uint64_t sum, const unsigned char* at, size_t left) {
  for (; left >= 8; left -= 8, at += 8) sum = rotated(sum ^ added(0, load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  for (; left >= 4; left -= 4, at += 4) sum = rotated(sum ^ load<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; left > 0; --left, ++at) sum = rotated(sum ^ *at * kPrime5, 11) * kPrime1;
  sum = (sum ^ sum >> 33) * kPrime2;
  sum = (sum ^ sum >> 29) * kPrime3;
  return sum ^ sum >> 32;
}

}  // namespace

uint64_t hash_bytes(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  size_t left = bytes;
  uint64_t sum = kPrime5;
  if (bytes >= kStripe) {
    uint64_t first = kPrime1 + kPrime2;
    uint64_t second = kPrime2;
    uint64_t third = 0;
    uint64_t fourth = 0 - kPrime1;
    for (; left >= kStripe; left -= kStripe, at += kStripe) {
      first = added(first, load<uint64_t>(at));
      second = added(second, load<uint64_t>(at + 8));
      third = added(third, load<uint64_t>(at + 16));
      fourth = added(fourth, load<uint64_t>(at + 24));
    }
    sum = rotated(first, 1) + rotated(second, 7) + rotated(third, 12) + rotated(fourth, 18);
    for (const uint64_t part : {first, second, third, fourth}) sum = merged(sum, part);
  }
  return finished(sum + bytes, at, left);
}

}  // namespace falcon
