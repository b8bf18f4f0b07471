// A stand-in for NCCL and CUDA in tests: the symbols of their public interfaces, no device and no communication. It
// says what it is (ncclGetLastError), remembers the last call with all its arguments, and answers what the test tells
// it to.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct StandinCall {
  const char* name;       // "ncclAllReduce"
  bool twin;              // reached as pncclAllReduce
  uint64_t arguments[9];  // in their order; what is passed by value as a structure: its first byte
  uint64_t calls;
};
extern StandinCall standin_call;
extern int standin_result;       // what every call returns
extern int standin_async_error;  // what ncclCommGetAsyncError tells
extern int standin_rank;         // what ncclCommUserRank and ncclCommCount tell
extern int standin_size;
extern void* standin_not_ready;  // a communicator whose last call goes on
extern int standin_warnings;     // questions that NCCL answers by a warning
extern void* standin_made;       // the handle that the next creation gives out
// How the next creations fail, up to the first without a result: what they return, and what ncclGetLastError tells from
// then on; null: what it told before.
struct StandinFailure {
  int result;
  const char* words;
};
extern StandinFailure standin_failures[4];

extern void (*standin_making)();  // called while a communicator is made, and while a group ends

struct StandinUniqueId {
  char internal[128];
};

// NOLINTBEGIN(readability-identifier-naming): NCCL's and CUDA's names
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int ncclReduce(const void*, void*, size_t, int, int, int, void*, void*);
int ncclBroadcast(const void*, void*, size_t, int, int, void*, void*);
int ncclBcast(void*, size_t, int, int, void*, void*);
int ncclAllGather(const void*, void*, size_t, int, void*, void*);
int ncclReduceScatter(const void*, void*, size_t, int, int, void*, void*);
int ncclAlltoAll(const void*, void*, size_t, int, void*, void*);
int ncclAllToAll(const void*, void*, size_t, int, void*, void*);
int ncclGather(const void*, void*, size_t, int, int, void*, void*);
int ncclScatter(const void*, void*, size_t, int, int, void*, void*);
int ncclSend(const void*, size_t, int, int, void*, void*);
int ncclRecv(void*, size_t, int, int, void*, void*);
int ncclAllReduceConfig(const void*, void*, size_t, int, int, void*, void*, const void*);
int ncclBroadcastConfig(const void*, void*, size_t, int, int, void*, void*, const void*);
int ncclReduceConfig(const void*, void*, size_t, int, int, int, void*, void*, const void*);
int ncclAllGatherConfig(const void*, void*, size_t, int, void*, void*, const void*);
int ncclReduceScatterConfig(const void*, void*, size_t, int, int, void*, void*, const void*);
int ncclAlltoAllConfig(const void*, void*, size_t, int, void*, void*, const void*);
int ncclGatherConfig(const void*, void*, size_t, int, int, void*, void*, const void*);
int ncclScatterConfig(const void*, void*, size_t, int, int, void*, void*, const void*);
int ncclCommInitRank(void**, int, StandinUniqueId, int);
int ncclCommInitRankConfig(void**, int, StandinUniqueId, int, void*);
int ncclCommInitRankScalable(void**, int, int, int, StandinUniqueId*, void*);
int ncclCommInitAll(void**, int, const int*);
int ncclCommSplit(void*, int, int, void**, void*);
int ncclCommShrink(void*, int*, int, void**, void*, int);
int ncclCommGrow(void*, int, const StandinUniqueId*, int, void**, void*);
int ncclCommFinalize(void*);
int ncclCommDestroy(void*);
int ncclCommAbort(void*);
int ncclCommGetAsyncError(void*, int*);
int ncclCommUserRank(void*, int*);
int ncclCommCount(void*, int*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclGroupSimulateEnd(void*);
const char* ncclGetLastError(void*);
// As NCCL calls a profiler plugin (v5), from its own code.
int standin_init_profiler(int (*init)(void**, uint64_t, int*, const char*, int, int, int, void*), void** context,
                          int* mask, int size, int rank);

// CUDA
extern void* standin_capturing;      // the stream that captures; null: none
extern bool standin_device_done;     // whether events are passed
extern float standin_elapsed_ms;     // between any two
extern int standin_unsafe_calls;     // event creations in a thread that could break another's capture
extern int standin_events_recorded;  // by cuEventRecord
extern void* standin_recorded_on;    // the last stream
extern int standin_queries;          // of events
extern int standin_faults;           // so many of the next queries fail
// From now on, CUDA is taken down when the program exits: whoever still queries ends it with status 99.
void standin_watch_exit();
int cudaGraphLaunch(void*, void*);
// NOLINTEND(readability-identifier-naming)
}
