// A collective call in progress, recorded however it ends.
#pragma once

#include "ring.h"

namespace falcon {

using Collective = void (*)(void*);

// Calls `call(options)` and appends `record` with its start and duration when the call returns, or, marked
// kFailed, when an exception leaves it. The exception passes on untouched.
void fly(Collective call, void* options, const Record& record, Ring* ring);

}  // namespace falcon
