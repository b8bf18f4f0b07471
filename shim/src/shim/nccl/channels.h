// Joins the ends that NCCL reports channel by channel: a call is done on the device once each of its channels has
// stopped.
#pragma once

#include <cstdint>

#include "cuda/device.h"

namespace falcon {

// Names one call. The name is stale once the call is done, or once so many later calls were begun that its place was
// taken: an event with a stale name is ignored. 0: none.
using ChannelCall = uint64_t;
constexpr uint32_t kChannelCallBits = 44;

// Begins to wait for the channels of a call. 0 where another thread is busy in the place that was next.
ChannelCall watch_channels(Rank* rank, const Timed& call);

// Sets how many channels the call has. No call completes before this number is known.
void expect_channels(ChannelCall call, uint32_t channels);

// A channel began, or stopped, at this time of the device's clock.
void channel_began(ChannelCall call, uint64_t device_ns);
void channel_stopped(ChannelCall call, uint64_t device_ns);

// A channel has ended; with the last channel the call's kCompleted record is written.
void channel_ended(ChannelCall call);

}  // namespace falcon
