// Lists what a folder holds: files, folders and symbolic links, by their paths below it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace falcon {

// Falcon's own folder in the script's folder and in the durable one; it is no part of what they hold.
constexpr char kOwnFolder[] = ".falcon-behind";

enum class Kind { kFile, kFolder, kLink, kOther };  // kOther: a socket, a FIFO, a device

struct Entry {
  Kind kind = Kind::kFile;
  int64_t bytes = 0;
  int64_t stored = 0;       // without holes
  int64_t modified_ns = 0;  // when the content changed
  int64_t changed_ns = 0;   // when anything changed, the name as well: no program can set it
  uint64_t inode = 0;
  mode_t mode = 0;
  std::string target;  // of a link
};

using Tree = std::map<std::string, Entry>;

// What was seen of a folder, and what was not.
struct Listing {
  Tree tree;
  std::map<std::string, std::string> unread;  // path → why. Below such a folder nothing is known to be gone.
};

// The path of a name in a folder.
inline std::string joined(const std::string& folder, const std::string& name) {
  std::string path;
  path.reserve(folder.size() + 1 + name.size());
  path.append(folder).append("/").append(name);
  return path;
}

class FolderRoot;

// Nothing, with the reason, where the folder itself cannot be read.
std::optional<Listing> read_tree(const FolderRoot& root, std::string* error);

// Whether nothing has happened to an entry of a folder between two looks.
bool unchanged(const Entry& before, const Entry& now);

// Whether an entry of one folder is a copy of another folder's. File systems keep times more or less finely.
bool is_copy(const Entry& original, const Entry& copy);

}  // namespace falcon
