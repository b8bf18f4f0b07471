#include "common/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace falcon {
namespace {

// The kernel reads the address for us, and says EFAULT instead of sending a signal.
bool through_pipe(const void* from, void* to, size_t bytes) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const auto wanted = static_cast<ssize_t>(bytes);
  const bool read_back = write(ends[1], from, bytes) == wanted && read(ends[0], to, bytes) == wanted;
  close(ends[0]);
  close(ends[1]);
  return read_back;
}

}  // namespace

bool copy_if_readable(const void* from, void* to, size_t bytes) {
  iovec here{to, bytes};
  iovec there{const_cast<void*>(from), bytes};
  const ssize_t copied = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
  if (copied >= 0 || errno == EFAULT) return copied == static_cast<ssize_t>(bytes);
  return through_pipe(from, to, bytes);  // forbidden by a seccomp profile, or not there in an emulator
}

}  // namespace falcon
