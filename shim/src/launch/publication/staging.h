// Stages a replica's parts of units that are not complete yet, on the volume, where no script sees them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "publication/shared_folder.h"
#include "tree/folder_root.h"
#include "tree/mover.h"

namespace falcon {

// One line of a part's list of changes: what lies at a path beneath the unit, or that it is gone.
struct StagedChange {
  bool gone = false;
  Kind kind = Kind::kFile;
  int64_t modified_ns = 0;
  mode_t mode = 0;
};
using StagedChanges = std::map<std::string, StagedChange>;  // the empty path is the unit

class Staging {
 public:
  struct Part {
    std::map<std::string, Entry> entries;  // path in the folder → what was copied
    std::set<std::string> gone;
    int64_t version = 0;    // 0: it may still change
    int64_t last_look = 0;  // before the newest copy
  };

  Staging(const FolderRoot& memory, const FolderRoot& durable, SharedFolder shared);

  // What an earlier process of this replica has left.
  void remove_leftovers();

  // Copies one entry; a frozen part is thawed first, and kStopped says that it has been taken for publication.
  Outcome copy(const std::string& unit, const std::string& path, const Entry& entry, int64_t look,
               const Progress& progress);
  Outcome remove(const std::string& unit, const std::string& path);

  // The part is complete: it is on disk, and others may publish it.
  Outcome freeze(const std::string& unit, const std::vector<std::string>& gone, int64_t version);
  bool thaw(const std::string& unit);

  // Whether the part is still there: another replica may have published it.
  bool is_present(const std::string& unit) const;

  const std::map<std::string, Part>& parts() const { return parts_; }
  void forget(const std::string& unit) { parts_.erase(unit); }
  void drop(const std::string& unit);

 private:
  std::string folder(const std::string& unit, int64_t version) const;
  std::string place(const std::string& unit, const std::string& path) const;
  Outcome sync(const std::string& unit, const Part& part) const;

  const FolderRoot& durable_;
  SharedFolder shared_;
  Mover mover_;
  std::map<std::string, Part> parts_;
};

std::string staged_text(const StagedChanges& changes);
StagedChanges parse_staged(const std::string& text);

// The name of a replica's part.
std::string part_name(int replica, int64_t version);

}  // namespace falcon
