// Declares NCCL's interface for profiler plugins, as far as it is used. The declarations are our own, so that no header
// of any release is needed. A plugin exports one table of functions per version, `ncclProfiler_v<N>`; NCCL takes the
// newest that it knows and translates older versions. Version by the NCCL release that first looks for it: v1 2.23, v2
// 2.24, v3 2.26, v4 2.27, v5 2.28; v6 2.29 and v7 2.32 are not offered, and those releases still look for v5.
#pragma once

#include <cstddef>
#include <cstdint>

namespace falcon::nccl {

// Event types, also bits of the mask by which a plugin says what it wants to hear.
enum Event : uint32_t {
  kCollEvent = 1U << 1U,           // v1: a collective goes to the device
  kP2pEvent = 1U << 2U,            // v1: a send or receive goes to the device
  kKernelChannelEvent = 1U << 6U,  // v3: the kernel works on a channel of a call; with device times since v4
  kGroupApiEvent = 1U << 8U,       // v5: the outermost group of calls
  kCollApiEvent = 1U << 9U,        // v5: the program's call of a collective
  kP2pApiEvent = 1U << 10U,        // v5: the program's call of a send or receive; does not name the peer
};

constexpr int kKernelChannelStop = 22;  // v4: state of a kernel channel event that carries its stop time

// What every descriptor begins with; a body by event type follows.
struct Head {
  uint64_t type;  // before v5 its first byte only, the others are not initialised
  void* parent;   // handle that the plugin gave to the parent event
  int32_t rank;   // in the communicator
};

struct CollV1 {
  const char* name;
  uint64_t communicator;
  uint64_t number;
  uint8_t function;
  const void* send;
  void* receive;
  size_t count;
  int32_t root;
  uint8_t type;
  uint32_t reduction;
  size_t traffic_bytes;
  uint8_t most_channels;
};

struct CollV2 {
  const char* name;
  uint64_t communicator;
  uint64_t number;
  const char* function;
  const void* send;
  void* receive;
  size_t count;
  int32_t root;
  const char* type;  // v2 and v3 differ in what follows, which says nothing of use: how many channels at most
};

struct CollV4 {
  uint64_t number;
  const char* function;
  const void* send;
  void* receive;
  size_t count;
  int32_t root;
  const char* type;
  uint8_t channels;
};

struct P2pV1 {
  const char* name;
  uint64_t communicator;
  uint8_t function;
  void* buffer;
  uint8_t type;
  size_t count;
  int32_t peer;
};

struct P2pV2 {
  const char* name;
  uint64_t communicator;
  const char* function;
  void* buffer;
  const char* type;
  size_t count;
  int32_t peer;
};

struct P2pV4 {
  const char* function;
  void* buffer;
  const char* type;
  size_t count;
  int32_t peer;
  uint8_t channels;
};

struct GroupApi {
  bool captured;
  int32_t depth;  // 1: NCCL's own around a single call
};

struct CollApi {
  const char* function;
  size_t count;
  const char* type;
  int32_t root;
  void* stream;
  bool captured;
};

struct P2pApi {
  const char* function;
  size_t count;
  const char* type;
  void* stream;
  bool captured;
};

struct KernelChannel {
  uint8_t channel;
  uint64_t start_ns;  // v4: the device's clock
};

struct KernelChannelStop {
  uint64_t stop_ns;
};

template <typename Body>
struct Descriptor {
  Head head;
  Body body;
};
static_assert(offsetof(Descriptor<CollV1>, body) == 24 && offsetof(CollV1, most_channels) == 80);
static_assert(offsetof(CollV2, type) == 64 && offsetof(CollV4, channels) == 56);
static_assert(offsetof(P2pV1, peer) == 48 && offsetof(P2pV2, peer) == 48 && offsetof(P2pV4, channels) == 36);
static_assert(offsetof(CollApi, captured) == 40 && offsetof(P2pApi, captured) == 32 && offsetof(GroupApi, depth) == 4);
static_assert(offsetof(KernelChannel, start_ns) == 8);

// The table of functions. `Init` differs: up to v3 (context, mask); v4 (context, mask, name, communicator, nodes, size,
// rank, log); v5 (context, communicator, mask, name, nodes, size, rank, log).
template <typename Init>
struct Profiler {
  const char* name;
  Init init;
  int (*start)(void* context, void** handle, const void* descriptor);
  int (*stop)(void* handle);
  int (*state)(void* handle, int state, const void* details);
  int (*finalize)(void* context);
};

using InitV1 = int (*)(void** context, int* mask);
using InitV4 = int (*)(void** context, int* mask, const char* name, uint64_t communicator, int nodes, int size,
                       int rank, const void* log);
using InitV5 = int (*)(void** context, uint64_t communicator, int* mask, const char* name, int nodes, int size,
                       int rank, const void* log);

}  // namespace falcon::nccl
