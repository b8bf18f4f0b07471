// Handles for tests of the hooks around NCCL: addresses that nothing follows.
#pragma once

#include <cstdint>

constexpr int kFloat32 = 7;
constexpr int kBfloat16 = 9;

inline char g_places[0x10000];  // handles are addresses in here

inline void* pointer(uint64_t value) { return &g_places[value]; }

inline void* const kSend = &g_places[0x5000];
inline void* const kRecv = &g_places[0x6000];
inline void* const kStream = &g_places[0x7000];
inline void* const kOther = &g_places[0x7100];
inline void* const kComm = &g_places[0xC000];
