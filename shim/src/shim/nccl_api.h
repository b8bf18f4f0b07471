// The public interface of NCCL (and RCCL, same names), as far as it is interposed: our own declarations, so that no
// header of any release is needed. Handles are pointers, enumerations are int; both are NCCL's promise to its callers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace falcon::nccl {

using Comm = void*;
using Stream = void*;
using Config = void;

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInvalidUsage = 5;
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

constexpr Element element(int type) {
  constexpr int kKnown = sizeof(kElements) / sizeof(kElements[0]);
  return type >= 0 && type < kKnown ? kElements[type] : Element{0, 0};
}

}  // namespace falcon::nccl
