// Calls the NCCL that is loaded, as a program does that has no GPU, and prints what it answered; a library, so that a
// program can be linked against it or dlopen it, as Python does with its extensions.
#include <dlfcn.h>

#include <cstdio>

#include "standins/standin_nccl.h"

extern "C" {

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
int ncclGetVersion(int*);
int ncclGetUniqueId(StandinUniqueId*);
const char* ncclGetErrorString(int);
// NOLINTEND(readability-identifier-naming)

__attribute__((visibility("default"))) void nccl_probe(bool call_absent) {
  int version = 0;
  StandinUniqueId id{};
  void* comm = nullptr;
  int device = 0;
  printf("{\"version\": [%d, ", ncclGetVersion(&version));
  printf("%d], \"unique_id\": %d, ", version, ncclGetUniqueId(&id));
  printf("\"error_string\": \"%s\", ", ncclGetErrorString(4));
  printf("\"group\": [%d, ", ncclGroupStart());
  printf("%d], ", ncclGroupEnd());
  printf("\"all_reduce\": %d, ", ncclAllReduce(nullptr, nullptr, 1, 7, 0, nullptr, nullptr));
  printf("\"send\": %d, ", ncclSend(nullptr, 1, 7, 0, nullptr, nullptr));
  printf("\"bad_rank\": %d, ", ncclCommInitRank(&comm, 1, id, 5));
  printf("\"init\": %d, ", ncclCommInitRank(&comm, 1, id, 0));
  printf("\"init_all\": %d, ", ncclCommInitAll(&comm, 1, &device));
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  const char* names[] = {"ncclCommSplit", "ncclCommShrink", "ncclCommInitRankScalable", "ncclAlltoAll", "ncclAllToAll"};
  printf("\"has\": {");
  for (const char* name : names) printf("\"%s\": %s, ", name, dlsym(library, name) == nullptr ? "false" : "true");
  printf("\"ncclAllReduce\": %s}", dlsym(library, "ncclAllReduce") == nullptr ? "false" : "true");
  if (call_absent) printf(", \"rccl_spelling\": %d", ncclAllToAll(nullptr, nullptr, 1, 7, nullptr, nullptr));
  printf("}\n");
}

}  // extern "C"
