// Reads what can be read from Gloo's option structures without its headers.
#pragma once

#include <cstdint>

namespace falcon {

// Gloo's option structures, one per collective.
enum class Options : uint8_t {
  kAllReduce,
  kAllGather,
  kAllGatherV,
  kAllToAll,
  kAllToAllV,
  kBarrier,
  kBroadcast,
  kReduce,
  kGather,
  kGatherV,
  kScatter,
  kCount
};

struct GlooCall {
  const void* context;  // null: the layout is not one we know
  int32_t rank;         // -1 unknown
  int32_t size;         // -1 unknown
  uint64_t bytes;       // 0 unknown
  int32_t root;         // -1 none or unknown
};

// The call's communicator, payload and root. The layout is checked at the first call of each kind (every address
// is probed before it is read, and the values must make sense); an unknown layout yields operation and duration only.
GlooCall read_options(Options kind, const void* options);

// A finished all-reduce's first output.
struct Result {
  const void* data;
  uint64_t bytes;
};

// The tag of an all-reduce, by which the program tells its calls apart. False where the layout is not one we know.
bool read_tag(const void* options, uint32_t* tag);

// What an all-reduce has written, if it has `bytes` bytes. False where the layout is not one we know.
bool read_result(const void* options, uint64_t bytes, Result* result);

// Whether a group's context holds this transport context. Any address may be asked.
bool holds_transport(const void* context, const void* transport);

}  // namespace falcon
