// A stand-in for NCCL's side of its profiler interface, v1 to v5 (NCCL asks for its plugin only with a GPU). It opens
// the library that NCCL_PROFILER_PLUGIN names, takes the tables, and hands out descriptors that are laid out by offset,
// from NCCL's public headers, apart from the shim's own declarations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "common/checking.h"
#include "common/ring.h"

// Bits of the mask and types of events.
constexpr int kGroup = 1;
constexpr int kColl = 2;
constexpr int kP2p = 4;
constexpr int kKernelChannel = 64;
constexpr int kGroupApi = 256;
constexpr int kCollApi = 512;
constexpr int kP2pApi = 1024;
constexpr int kKernelChannelStop = 22;

struct Table {
  const char* name;
  void* init;
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*state)(void*, int, void*);
  int (*finalize)(void*);
};
using InitV1 = int (*)(void**, int*);
using InitV4 = int (*)(void**, int*, const char*, uint64_t, int, int, int, void*);
using InitV5 = int (*)(void**, uint64_t, int*, const char*, int, int, int, void*);

extern char g_places[64];  // streams are addresses in here

// Opens the plugin. False: it cannot be, and why was said.
bool open_plugin();

const Table& table(int version);

// A part of an event's descriptor.
struct Field {
  size_t at;
  const void* value;
  size_t bytes;
};

struct Made {
  void* context;
  int mask;
};

// The communicator of a version, once `begin` has made it.
Made& made(int version);
void begin(int version);

// Starts an event; answers the plugin's handle.
void* started(int version, uint64_t type, void* parent, std::initializer_list<Field> fields);

// A collective, a send or a receive goes to the device. The numbers are ncclFunc_t's and ncclDataType_t's, which v1
// hands out instead of names.
void* collective(int version, uint8_t number, const char* name, size_t count, int root, uint8_t type_number,
                 const char* type, uint8_t channels = 2, void* parent = nullptr);
void* single(int version, uint8_t number, const char* name, size_t count, int peer, uint8_t type_number,
             const char* type, void* parent = nullptr);

// v5: the program calls.
void* collective_api(const char* name, size_t count, const char* type, int root, void* stream, bool captured,
                     void* parent);
void* single_api(const char* name, size_t count, const char* type, void* stream, bool captured, void* parent);
void* group_api(int depth);

// v4 and newer: the kernel works on a channel of a call.
void* kernel_channel(int version, void* parent, uint8_t channel, uint64_t start_ns);
void kernel_channel_ends(int version, void* handle, uint64_t stop_ns);
