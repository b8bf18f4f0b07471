// Copies a value from memory of this process that may not be readable.
#pragma once

#include <cstddef>

namespace falcon {

// Copies `bytes` from an address that may not be readable; false if it is not.
bool copy_if_readable(const void* from, void* to, size_t bytes);

template <typename T>
bool probe(const void* base, int offset, T* value) {
  return copy_if_readable(static_cast<const char*>(base) + offset, value, sizeof(T));
}

}  // namespace falcon
