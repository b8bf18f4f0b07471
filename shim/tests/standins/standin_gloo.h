// A stand-in for Gloo in tests and benchmarks: no network and no peers, only the symbols that PyTorch's Gloo exports
// and the memory layout that the hooks read. Never shipped.
#pragma once

#include <cstdint>

namespace gloo {

struct StandinContext {
  int32_t rank;
  int32_t size;
  int32_t base;
};

// The fields that the shim reads stand at their real offsets.
struct AllreduceOptions {
  const StandinContext* context;
  char unread[72];
  uint64_t elements;
  uint64_t element_size;
};
static_assert(sizeof(void*) == 8 && sizeof(AllreduceOptions) == 96);

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
