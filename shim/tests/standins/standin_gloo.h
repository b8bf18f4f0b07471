// A stand-in for Gloo in tests and benchmarks: no network and no peers, only the symbols that PyTorch's Gloo exports
// and the memory layout that the hooks read. Never shipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gloo {

struct StandinContext {
  int32_t rank;
  int32_t size;
  int32_t base;
};

// An UnboundBuffer's begin.
struct StandinBuffer {
  const void* vtable;
  void* data;
  uint64_t bytes;
};

// The fields that the shim reads stand at their real offsets.
struct AllreduceOptions {
  const StandinContext* context;
  char unread[72];  // at its end a std::vector of outputs
  uint64_t elements;
  uint64_t element_size;
  char reduce[32]{};
  uint32_t tag = 0;
  uint64_t segment_size = 0;

  void set_outputs(StandinBuffer** first, size_t many) {
    StandinBuffer** const ends[2] = {first, first + many};
    memcpy(unread + 48, ends, sizeof(ends));
  }
};
static_assert(sizeof(void*) == 8 && offsetof(AllreduceOptions, elements) == 80);
static_assert(offsetof(AllreduceOptions, tag) == 128 && sizeof(AllreduceOptions) == 144);

// Options as PyTorch makes them: one output, no input. They hold while `buffer` lives.
inline AllreduceOptions options(const StandinContext& context, StandinBuffer* buffer, uint64_t element_size,
                                uint32_t tag) {
  static thread_local StandinBuffer* outputs[1];
  outputs[0] = buffer;
  AllreduceOptions made{&context, {}, buffer->bytes / element_size, element_size, {}, tag, 1 << 20};
  made.set_outputs(outputs, 1);
  return made;
}

struct BarrierOptions {
  const StandinContext* context;
};

// Counts the call, sets errno to `standin_errno` unless that is 0, and throws std::runtime_error where `standin_throws`
// is set.
void allreduce(const AllreduceOptions& options);
void barrier(BarrierOptions& options);

// A connection that failed at set-up, as Gloo tells its logger; texts follow what stands here.
namespace transport::tcp {
struct ConnectDebugData {
  int retry;
  int retry_limit;
  bool will_retry;
  int rank;
  int size;
};
struct DebugLogger {
  static void log(const ConnectDebugData& data);  // counts the call
};
}  // namespace transport::tcp

extern uint64_t standin_calls;
extern const void* standin_argument;
extern int standin_errno;
extern bool standin_throws;

}  // namespace gloo
