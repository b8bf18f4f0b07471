// Reads this process's environment so that a thread that changes it meanwhile does no harm: the C library's getenv
// follows pointers that setenv frees in another thread.
#pragma once

#include <stddef.h>

namespace falcon {

// What the shim needs of the environment for the whole life of a process; empty: not set.
struct Variables {
  char hold[128];
  char master_address[256];
  int master_port;
};

// The copy that was made when the library was loaded. A standby makes another when it becomes a rank
// (falcon_read_variables).
const Variables& variables();

// Copies the present value of a variable, cut to `size` - 1 bytes. False where it is not set; then the copy is empty.
bool read_variable(const char* name, char* value, size_t size);

// The present value as a number from 0 on; `fallback` for another.
int read_number(const char* name, int fallback);

}  // namespace falcon

// Copies the variables again. agent/falcon_start/standby.py calls it after it has changed them, before any line of the
// program runs.
extern "C" __attribute__((visibility("default"))) void falcon_read_variables();
