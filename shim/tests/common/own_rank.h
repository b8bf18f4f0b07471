// A test's own process as the rank that the shim makes of it: its ring, and the control file that it obeys.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/checking.h"
#include "common/control_file.h"

inline View g_ring{};
inline char* g_control = nullptr;

inline falcon::ControlHeader& control() { return *reinterpret_cast<falcon::ControlHeader*>(g_control); }
inline void set_mode(falcon::Mode mode) { control().mode = static_cast<uint32_t>(mode); }
inline uint64_t head() { return g_ring.header->head.load(); }
inline const falcon::Record& last(uint64_t back = 0) { return g_ring.slots[head() - 1 - back]; }

inline uint64_t records(falcon::Kind kind, uint64_t from) {
  uint64_t found = 0;
  for (uint64_t i = from; i < head(); ++i) found += g_ring.slots[i].kind == kind ? 1 : 0;
  return found;
}

// Makes the control file and an empty folder for rings, where FALCON_CONTROL and FALCON_RING_DIR say. The folder;
// empty: they say nothing.
inline std::string make_places() {
  const char* folder = getenv("FALCON_RING_DIR");
  const char* path = getenv("FALCON_CONTROL");
  if (folder == nullptr || path == nullptr) return {};
  mkdir(folder, 0755);
  for (const std::string& old : rings(folder)) unlink(old.c_str());
  g_control = make_control(path);
  return folder;
}

inline void remove_rings(const std::string& folder) {
  for (const std::string& ring : rings(folder)) unlink(ring.c_str());
}
