// copy_test: every byte of a copy is there, at any place and of any size, and none beside it is touched.
#include "common/copy.h"

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr size_t kRoom = 256;  // before and behind
constexpr unsigned char kUntouched = 0xa5;

bool is_right(size_t to_at, size_t from_at, size_t bytes) {
  std::vector<unsigned char> from(from_at + bytes + 1);
  for (size_t at = 0; at < from.size(); ++at) from[at] = static_cast<unsigned char>(at * 31 % 251);
  std::vector<unsigned char> to(kRoom + to_at + bytes + kRoom, kUntouched);
  const size_t begin = kRoom + to_at;
  falcon_copy(to.data() + begin, from.data() + from_at, bytes);
  if (memcmp(to.data() + begin, from.data() + from_at, bytes) != 0) return false;
  for (size_t at = 0; at < to.size(); ++at) {
    const bool inside = at >= begin && at < begin + bytes;
    if (!inside && to[at] != kUntouched) return false;
  }
  return true;
}

}  // namespace

int main() {
  int failures = 0;
  for (const size_t bytes : {0, 1, 63, 64, 65, 4095, 4096, 16383, 16384, 16385, 16384 + 63, 65536, 100003, 1 << 20}) {
    for (const size_t to_at : {0, 1, 16, 63, 4095}) {
      for (const size_t from_at : {0, 1, 8, 63}) {
        if (is_right(to_at, from_at, bytes)) continue;
        ++failures;
        fprintf(stderr, "copy_test: %zu bytes from %zu to %zu\n", bytes, from_at, to_at);
      }
    }
  }
  return failures == 0 ? 0 : 1;
}
