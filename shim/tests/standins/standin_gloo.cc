#include "standins/standin_gloo.h"

#include <cerrno>
#include <stdexcept>

namespace gloo {

uint64_t standin_calls = 0;
const void* standin_argument = nullptr;
int standin_errno = 0;
bool standin_throws = false;

void allreduce(const AllreduceOptions& options) {
  __atomic_fetch_add(&standin_calls, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&standin_argument, &options, __ATOMIC_RELAXED);
  if (standin_errno != 0) errno = standin_errno;
  if (standin_throws) throw std::runtime_error("stand-in");
}

void barrier(BarrierOptions& options) {
  __atomic_fetch_add(&standin_calls, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&standin_argument, &options, __ATOMIC_RELAXED);
}

void transport::tcp::DebugLogger::log(const ConnectDebugData& data) {
  __atomic_fetch_add(&standin_calls, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&standin_argument, &data, __ATOMIC_RELAXED);
}

}  // namespace gloo
