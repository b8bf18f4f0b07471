// Computes the steps that give the script's folder the content of the durable one, before the ranks start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tree/tree.h"

namespace falcon {

struct FillStep {
  enum class What {
    kRemove,   // from the script's folder
    kFolder,   // make it
    kLink,     // a symbolic link as the script made it
    kFetch,    // the content, into memory
    kReplace,  // a link to the durable file: it does not fit
  } what = What::kRemove;
  std::string path;
  Entry entry;  // the durable one's
};

// In the order in which they are to be done. Files that are there already stay; of the others the newest come first,
// as long as all files together take no more than `most` bytes of memory.
std::vector<FillStep> plan_fill(const Tree& durable, const Tree& memory, const std::string& folder, int64_t most);

}  // namespace falcon
