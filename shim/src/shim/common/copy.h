// Copies past the CPU's caches, for a checkpoint in memory: falcon_torch/store/mapped_copy.py calls it.
#pragma once

#include <cstddef>

// Copies bytes that do not overlap. Faster than memcpy beyond the caches: a cache line is written without being read
// before, and training finds its own data where it was.
extern "C" __attribute__((visibility("default"))) void falcon_copy(void* to, const void* from, size_t bytes);
