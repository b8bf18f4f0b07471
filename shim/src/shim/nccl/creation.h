// Knows the communicators that hooked calls are making. NCCL reports each communicator to its profiler plugin while it
// makes it, maybe on a thread of its own. The plugin leaves these to the hooks. All others are the plugin's, whichever
// library made them.
#pragma once

#include <cstdint>

namespace falcon::nccl {

// Names what one call makes. 0: no call.
using Making = uint32_t;

// A call begins to make `count` communicators of this size and rank; where it makes more than one, of each rank. A size
// of 0, or a rank of -1, is not known.
Making begin_making(int32_t size, int32_t rank, uint32_t count);

// The call is done: NCCL reports nothing more that it made.
void end_making(Making making);

// Whether a communicator that NCCL reports is one that a hooked call makes; each is reported once.
bool is_made_by_hooks(int32_t size, int32_t rank);

}  // namespace falcon::nccl
