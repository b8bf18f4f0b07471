// Keeps the communicators of NCCL in this process.
#pragma once

#include "nccl/api.h"
#include "nccl/forwarding.h"
#include "rank/rank.h"

namespace falcon::nccl {

// The communicator of a call; introduced here if its handle is new. Null: the table is full.
Communicator* meet(Rank* rank, Comm comm);

// A communicator was made. Its handle may be null: a split without a colour makes none.
void add(const Pending& made);

// A call that makes a communicator, or the group that it was in, has answered this: adds the communicator now, or once
// its library says that it is made.
void settle(const Pending& made, Result answer);

}  // namespace falcon::nccl
