// Records sends and receives inside a group. Those of one communicator are one record where they are an exchange, as an
// all-to-all of unequal parts is: both sends and receives, with more than two other ranks or with this rank itself. A
// pipeline's are neither, nor are those of a root that gathers or scatters: they stay records of their own.
#pragma once

#include "nccl/communicators.h"

namespace falcon::nccl {

struct Single {
  Communicator* communicator;  // null: not known
  Op op;                       // kSend or kRecv
  int32_t peer;
  uint64_t bytes;
  uint8_t dtype;
  const void* stream;
};

inline bool is_single(Op op) { return op == Op::kSend || op == Op::kRecv; }
inline Traffic traffic_of(Op op) { return op == Op::kSend ? Traffic::kSend : Traffic::kRecv; }

// Keeps a send or receive of this thread's group, which was counted, until the group ends. What was refused, and what
// finds no room, is recorded at once.
void keep_single(Rank* rank, const Single& single, const Counted& counted, bool accepted);

}  // namespace falcon::nccl
