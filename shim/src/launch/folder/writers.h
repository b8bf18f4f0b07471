// Finds who may still write to the files of a folder, from /proc, as far as it may be read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>

namespace falcon {

// The files below `root` (a path without links) that another process has open, or mapped, for writing: paths below it.
std::set<std::string> open_for_writing(const std::string& root);

// A process by its pid and its start.
using Life = std::pair<pid_t, uint64_t>;

// The processes below `root` that are not about to end, but for this one.
std::set<Life> living(pid_t root);

// Whether the whole of a file is there, by its own end: a zip archive, as torch.save and numpy.savez write it, has its
// list of contents there. False for other formats: nothing is known.
bool ends_as_whole(const std::string& path);

}  // namespace falcon
