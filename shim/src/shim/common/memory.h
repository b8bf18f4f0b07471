// Reads memory of this process that may not be there: what a caller's pointer names, and what another thread may free.
#pragma once

#include <stddef.h>

namespace falcon {

// Copies at most `size` bytes through the kernel, up to the first that cannot be read. Their number; errno is kept. No
// lock and no allocation, so that it may run in a signal handler.
size_t read_memory(const void* from, void* to, size_t size);

}  // namespace falcon
