#include "standins/standin_nccl.h"

#include <cstring>

extern "C" {

StandinCall standin_call{};
int standin_result = 0;
int standin_async_error = 0;
int standin_rank = 2;
int standin_size = 4;
void* standin_made = nullptr;
void* standin_not_ready = nullptr;
int standin_warnings = 0;
StandinFailure standin_failures[4] = {};
void (*standin_making)() = nullptr;

}  // extern "C"

namespace {

template <typename Value>
uint64_t bits(Value value) {
  uint64_t word = 0;
  memcpy(&word, &value, sizeof(value) < sizeof(word) ? sizeof(value) : 1);
  return word;
}
template <>
uint64_t bits(void* value) {
  return reinterpret_cast<uint64_t>(value);
}
template <>
uint64_t bits(const void* value) {
  return reinterpret_cast<uint64_t>(value);
}
template <>
uint64_t bits(size_t value) {
  return value;
}

template <typename... Arguments>
int note(const char* name, bool twin, Arguments... arguments) {
  const uint64_t calls = standin_call.calls + 1;
  standin_call = {name, twin, {bits(arguments)...}, calls};
  return standin_result;
}

constexpr int kInProgress = 7;

const char* last_words = "this is Falcon's stand-in for NCCL, not NCCL";

int tell_making() {
  if (standin_making != nullptr) standin_making();
  return standin_result;
}

int give(void** made) {
  tell_making();
  const StandinFailure failure = standin_failures[0];
  if (failure.result != 0) {
    memmove(standin_failures, standin_failures + 1, sizeof(standin_failures) - sizeof(failure));
    standin_failures[3] = {};
    if (failure.words != nullptr) last_words = failure.words;
    return failure.result;
  }
  if (made != nullptr && standin_result == 0) *made = standin_made;
  return standin_result;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming,bugprone-macro-parentheses): NCCL's names
// The public name is weak and forwards to its twin, as in NCCL's own wheels.
#define STANDIN(name, parameters, arguments, body)                                 \
  extern "C" int p##name parameters { return note(#name, true, arguments), body; } \
  extern "C" __attribute__((weak)) int name parameters { return note(#name, false, arguments), body; }
#define ARGS(...) __VA_ARGS__
#define V const void*

STANDIN(ncclAllReduce, (V a, void* b, size_t c, int d, int e, void* f, void* g), ARGS(a, b, c, d, e, f, g),
        standin_result)
STANDIN(ncclReduce, (V a, void* b, size_t c, int d, int e, int f, void* g, void* h), ARGS(a, b, c, d, e, f, g, h),
        standin_result)
STANDIN(ncclBroadcast, (V a, void* b, size_t c, int d, int e, void* f, void* g), ARGS(a, b, c, d, e, f, g),
        standin_result)
STANDIN(ncclBcast, (void* a, size_t b, int c, int d, void* e, void* f), ARGS(a, b, c, d, e, f), standin_result)
STANDIN(ncclAllGather, (V a, void* b, size_t c, int d, void* e, void* f), ARGS(a, b, c, d, e, f), standin_result)
STANDIN(ncclReduceScatter, (V a, void* b, size_t c, int d, int e, void* f, void* g), ARGS(a, b, c, d, e, f, g),
        standin_result)
STANDIN(ncclSend, (V a, size_t b, int c, int d, void* e, void* f), ARGS(a, b, c, d, e, f), standin_result)
STANDIN(ncclRecv, (void* a, size_t b, int c, int d, void* e, void* f), ARGS(a, b, c, d, e, f), standin_result)
STANDIN(ncclCommInitRank, (void** a, int b, StandinUniqueId c, int d), ARGS((void*)a, b, c, d), give(a))
STANDIN(ncclCommInitRankConfig, (void** a, int b, StandinUniqueId c, int d, void* e), ARGS((void*)a, b, c, d, e),
        give(a))
STANDIN(ncclCommInitAll, (void** a, int b, const int* c), ARGS((void*)a, b, (V)c), give(a))
STANDIN(ncclCommFinalize, (void* a), ARGS(a), standin_result)
STANDIN(ncclCommDestroy, (void* a), ARGS(a), standin_result)
STANDIN(ncclCommAbort, (void* a), ARGS(a), standin_result)
STANDIN(ncclGroupStart, (), 0, standin_result)
STANDIN(ncclGroupEnd, (), 0, tell_making())
#ifndef STANDIN_OLD  // what an early release does not have
// Made of sends and receives that go through the public names, as RCCL's is.
extern "C" int pncclAlltoAll(V a, void* b, size_t c, int d, void* e, void* f) {
  ncclGroupStart();
  ncclSend(a, c, d, 0, e, f);
  ncclRecv(b, c, d, 0, e, f);
  ncclGroupEnd();
  return note("ncclAlltoAll", true, a, b, c, d, e, f);
}
extern "C" __attribute__((weak)) int ncclAlltoAll(V a, void* b, size_t c, int d, void* e, void* f) {
  return note("ncclAlltoAll", false, a, b, c, d, e, f);
}
STANDIN(ncclAllToAll, (V a, void* b, size_t c, int d, void* e, void* f), ARGS(a, b, c, d, e, f), standin_result)
STANDIN(ncclGather, (V a, void* b, size_t c, int d, int e, void* f, void* g), ARGS(a, b, c, d, e, f, g), standin_result)
STANDIN(ncclScatter, (V a, void* b, size_t c, int d, int e, void* f, void* g), ARGS(a, b, c, d, e, f, g),
        standin_result)
STANDIN(ncclAllReduceConfig, (V a, void* b, size_t c, int d, int e, void* f, void* g, V h),
        ARGS(a, b, c, d, e, f, g, h), standin_result)
STANDIN(ncclBroadcastConfig, (V a, void* b, size_t c, int d, int e, void* f, void* g, V h),
        ARGS(a, b, c, d, e, f, g, h), standin_result)
STANDIN(ncclReduceConfig, (V a, void* b, size_t c, int d, int e, int f, void* g, void* h, V i),
        ARGS(a, b, c, d, e, f, g, h, i), standin_result)
STANDIN(ncclAllGatherConfig, (V a, void* b, size_t c, int d, void* e, void* f, V g), ARGS(a, b, c, d, e, f, g),
        standin_result)
STANDIN(ncclReduceScatterConfig, (V a, void* b, size_t c, int d, int e, void* f, void* g, V h),
        ARGS(a, b, c, d, e, f, g, h), standin_result)
STANDIN(ncclAlltoAllConfig, (V a, void* b, size_t c, int d, void* e, void* f, V g), ARGS(a, b, c, d, e, f, g),
        standin_result)
STANDIN(ncclGatherConfig, (V a, void* b, size_t c, int d, int e, void* f, void* g, V h), ARGS(a, b, c, d, e, f, g, h),
        standin_result)
STANDIN(ncclScatterConfig, (V a, void* b, size_t c, int d, int e, void* f, void* g, V h), ARGS(a, b, c, d, e, f, g, h),
        standin_result)
STANDIN(ncclCommInitRankScalable, (void** a, int b, int c, int d, StandinUniqueId* e, void* f),
        ARGS((void*)a, b, c, d, (void*)e, f), give(a))
STANDIN(ncclCommSplit, (void* a, int b, int c, void** d, void* e), ARGS(a, b, c, (void*)d, e), give(d))
STANDIN(ncclCommShrink, (void* a, int* b, int c, void** d, void* e, int f), ARGS(a, (void*)b, c, (void*)d, e, f),
        give(d))
STANDIN(ncclCommGrow, (void* a, int b, const StandinUniqueId* c, int d, void** e, void* f),
        ARGS(a, b, (V)c, d, (void*)e, f), give(e))
STANDIN(ncclGroupSimulateEnd, (void* a), ARGS(a), standin_result)
#endif

extern "C" {

int ncclCommUserRank(void* comm, int* rank) {
  if (comm == standin_not_ready && ++standin_warnings > 0) return kInProgress;
  *rank = standin_rank;
  return 0;
}

int ncclCommCount(void* comm, int* count) {
  if (comm == nullptr) {
    last_words = "CommCount : comm argument is NULL";
    return 4;
  }
  if (comm == standin_not_ready && ++standin_warnings > 0) return kInProgress;
  *count = standin_size;
  return 0;
}

int ncclCommGetAsyncError(void* comm, int* error) {
  *error = comm == standin_not_ready ? kInProgress : standin_async_error;
  return 0;
}

int ncclGetVersion(int* version) {
  *version = 0;  // no release
  return 0;
}

int ncclGetUniqueId(StandinUniqueId* /*id*/) { return 0; }

int standin_init_profiler(int (*init)(void**, uint64_t, int*, const char*, int, int, int, void*), void** context,
                          int* mask, int size, int rank) {
  volatile int answer =
      init(context, 1, mask, nullptr, 1, size, rank, nullptr);  // not a tail call: it is asked who calls
  return answer;
}

const char* ncclGetErrorString(int /*result*/) { return "Falcon's stand-in"; }

const char* ncclGetLastError(void* /*comm*/) { return last_words; }

}  // extern "C"
// NOLINTEND(readability-identifier-naming,bugprone-macro-parentheses)
