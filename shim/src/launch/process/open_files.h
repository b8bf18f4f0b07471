// Counts the files that the processes of a rank hold open, against the limit of each.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "process/processes.h"

namespace falcon {

struct OpenFiles {
  int64_t count = 0;
  int64_t limit = 0;  // RLIMIT_NOFILE, the soft one
};

// Of `root` and its descendants the process that is nearest to its limit. Nothing where none can be read.
std::optional<OpenFiles> most_open_files(pid_t root, const std::vector<Process>& processes);

}  // namespace falcon
