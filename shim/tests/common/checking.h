// What the shim's own tests share: checks that count, and a ring as a reader maps it.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/ring.h"

inline int failures = 0;

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      ++failures;                                                             \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                         \
  } while (false)

// Paths of the rings in a folder.
inline std::vector<std::string> rings(const std::string& folder) {
  std::vector<std::string> found;
  DIR* listing = opendir(folder.c_str());
  while (const dirent* entry = listing == nullptr ? nullptr : readdir(listing)) {
    if (entry->d_name[0] != '.') found.push_back(folder + "/" + entry->d_name);
  }
  if (listing != nullptr) closedir(listing);
  return found;
}

struct View {
  const falcon::RingHeader* header;
  const falcon::Record* slots;
};

// A ring, mapped read-only; a file that cannot be mapped ends the test.
inline View view(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat about{};
  void* mapped = MAP_FAILED;
  if (file >= 0 && fstat(file, &about) == 0) {
    mapped = mmap(nullptr, static_cast<size_t>(about.st_size), PROT_READ, MAP_SHARED, file, 0);
    close(file);
  }
  if (mapped == MAP_FAILED || mapped == nullptr) {
    fprintf(stderr, "%s is no ring\n", path.c_str());
    abort();
  }
  return {static_cast<const falcon::RingHeader*>(mapped),
          reinterpret_cast<const falcon::Record*>(static_cast<const char*>(mapped) + falcon::kHeaderBytes)};
}
