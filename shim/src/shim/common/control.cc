#include "common/control.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace falcon {

void Control::map(const char* path) {
  header_ = nullptr;
  capacity_ = 0;
  if (path == nullptr) return;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void* mapped = MAP_FAILED;
  // fstat is __fxstat before GLIBC_2.33, which another C library need not have: its loader would end the program.
  const off_t end = lseek(file, 0, SEEK_END);
  const auto size = static_cast<size_t>(end);
  if (end >= static_cast<off_t>(kSmallest)) mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return;
  const auto* header = static_cast<const ControlHeader*>(mapped);
  if (header->magic != kMagic || header->version != kVersion) {
    munmap(mapped, size);
    return;
  }
  header_ = header;
  capacity_ = static_cast<uint32_t>((size - sizeof(ControlHeader)) / sizeof(GateEntry));
}

}  // namespace falcon
