// Records a collective call in progress, however it ends.
#pragma once

#include "common/ring.h"

namespace falcon {

using Collective = void (*)(void*);

// Calls `call(options)`, counts its end in `counter`, and appends `record` with its start and duration when the call
// returns, or, marked kFailed, when an exception leaves it. The exception passes on untouched. `ring` null: no record.
void fly(Collective call, void* options, const Record& record, Ring* ring, Counter* counter);

// Within `call`: whom the call in progress turned out to be with, and what to tell when it ends.
void name_peer(int32_t peer, Counter* counter);

// Whether this thread is inside a collective: what it calls in turn is a part of that.
bool in_flight();

}  // namespace falcon
