// Hashes bytes so that two copies can be compared without moving them: the public algorithm XXH64, seed 0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace falcon {

// The same on every machine that we run on (little endian).
uint64_t hash_bytes(const void* data, size_t bytes);

}  // namespace falcon
