// Makes room in memory: an older file becomes a symbolic link to its durable copy.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "tree/folder_root.h"

namespace falcon {

// `writing`: the files of the script's folder that are open for writing now. A process that opens the file while it is
// replaced is seen afterwards, and gets it back. False where the file stays.
bool replace_with_link(const FolderRoot& memory, const FolderRoot& durable, const std::string& path,
                       const std::function<std::set<std::string>()>& writing);

}  // namespace falcon
