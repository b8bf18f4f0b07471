// Declares the public interface of NCCL (and RCCL, same names), as far as it is interposed. The declarations are our
// own, so that no header of any release is needed. Handles are pointers, enumerations are int; both are NCCL's promise
// to its callers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace falcon::nccl {

using Comm = void*;
using Stream = void*;
using Config = void;

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kSystemError = 2;
constexpr Result kInvalidUsage = 5;
constexpr Result kRemoteError = 6;
constexpr Result kInProgress = 7;  // of a communicator whose calls do not block

// Passed by value.
struct UniqueId {
  char internal[128];
};

constexpr bool accepted(Result result) { return result == kSuccess || result == kInProgress; }

struct Element {
  uint8_t wire;   // falcon_core.wire.ring.DType
  uint8_t bytes;  // 0: not known
};

// ncclDataType_t, by value.
constexpr Element kElements[] = {
    {1, 1},   // int8, char
    {2, 1},   // uint8
    {3, 4},   // int32
    {4, 4},   // uint32
    {5, 8},   // int64
    {6, 8},   // uint64
    {7, 2},   // float16
    {9, 4},   // float32
    {10, 8},  // float64
    {8, 2},   // bfloat16
    {11, 1},  // float8 e4m3
    {12, 1},  // float8 e5m2
};

// The same by name, as the profiler interface has them since v2.
constexpr const char* kElementNames[] = {
    "ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",   "ncclInt64",      "ncclUint64",
    "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2",
};
static_assert(sizeof(kElementNames) / sizeof(kElementNames[0]) == sizeof(kElements) / sizeof(kElements[0]));
constexpr int kUint8 = 1;

// "Unknown" is what every release from 2.24 to 2.32 calls its uint8, and no other type that it has.
inline Element element(const char* name) {
  if (name == nullptr) return {0, 0};
  int type = 0;
  for (const char* known : kElementNames) {
    if (strcmp(known, name) == 0) return kElements[type];
    ++type;
  }
  return strcmp(name, "Unknown") == 0 ? kElements[kUint8] : Element{0, 0};
}

constexpr Element element(int type) {
  constexpr int kKnown = sizeof(kElements) / sizeof(kElements[0]);
  return type >= 0 && type < kKnown ? kElements[type] : Element{0, 0};
}

}  // namespace falcon::nccl
