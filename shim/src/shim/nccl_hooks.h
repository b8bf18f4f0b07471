// What others need to know about the hooks around NCCL.
#pragma once

namespace falcon::nccl {

// Whether the hooks have forwarded to the loaded object that this address lies in: its calls are seen by them.
bool hooks_reach(const void* address);

}  // namespace falcon::nccl
