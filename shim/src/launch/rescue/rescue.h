// Saves the checkpoints in a pod's memory when the pod ends, and its memory with it. What the ranks' own threads have
// not finished goes to the folder that the script has named (docs/adr/0086).
#pragma once

#include <string>

namespace falcon {

// A process of its own, since a volume may hang: it ends when all is in the folders, and is killed before that where
// the pod has no more time. Exit code 0: all is there.
int rescue(const std::string& store);

}  // namespace falcon
