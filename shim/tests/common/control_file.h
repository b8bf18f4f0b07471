// A control file as the agent makes it, mapped for a test to write into.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "common/control.h"

// In TRACK mode, with an empty table of targets. The mapping lasts as long as the process.
inline char* make_control(const char* path) {
  falcon::ControlHeader fresh{};
  fresh.magic = falcon::Control::kMagic;
  fresh.version = falcon::Control::kVersion;
  fresh.mode = static_cast<uint32_t>(falcon::Mode::kTrack);
  std::vector<char> content(65536, 0);
  memcpy(content.data(), static_cast<const void*>(&fresh), sizeof(fresh));
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  const int file = open(path, O_RDWR | O_CLOEXEC);
  auto* mapped = static_cast<char*>(mmap(nullptr, content.size(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
  return mapped;
}
