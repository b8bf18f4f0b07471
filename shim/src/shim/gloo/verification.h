// Hashes results of all-reduces, which are the same bytes on all members: the operator compares the hashes
// (docs/adr/0173). Gloo's buffers lie in the CPU's memory; NCCL's lie in the device's, and are not read.
#pragma once

#include "gloo/options.h"
#include "rank/rank.h"

namespace falcon {

// To be called for every all-reduce that has returned, before its caller gets control: the buffer may be used again
// then. Hashes the result of a chosen call and appends its record. `number`: of the call in its communicator, where the
// program gives calls no tags of their own. Takes no lock and keeps errno.
void verify_result(Rank* rank, Communicator* communicator, const GlooCall& about, const void* options, uint32_t number);

}  // namespace falcon
