// Groups the changes in the script's folder into units, each of which appears in the durable folder at once
// (docs/adr/0114). It touches no files.
//
// A unit is the topmost folder on the way to a change that is no run's folder: a checkpoint, whole. What lies in the
// root or in a run's folder itself is a single.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "units/write_back.h"

namespace falcon {

struct Unit {
  std::vector<std::string> changed;   // pending paths at and beneath it
  std::vector<std::string> removed;   // durable paths beneath it that are gone; of a folder, the folder alone
  std::vector<std::string> deferred;  // removed as well, but only when names have moved on
  int64_t first_look = 0;             // that saw the oldest of its changes which is not open
  int64_t since_ns = 0;               // the newest change
  int64_t changed_ns = 0;             // its oldest change that is not open, by the file system's clock
  int closed = 0;                     // changes of it that are no folders and are not open
  bool open = false;                  // a file in it is open for writing, or changed in the last look
  bool finished = true;               // all of its changes are
  bool rewrites = false;              // some of it is durable
};

struct Groups {
  std::map<std::string, Unit> units;
  std::vector<std::string> singles;
  std::map<std::string, Absence> removals;  // each with all that is beneath it
};

Groups group(const WriteBack& back, const std::set<std::string>& run_folders);

// The unit that a path belongs to; empty for a single.
std::string unit_of(const std::string& path, bool is_folder, const std::set<std::string>& run_folders);

// A small file or a link may name others: it goes when they are there.
bool is_name(const Entry& entry);

// A unit that has an open file and has not changed otherwise for so long holds up no other.
bool is_stuck(const Unit& unit, int64_t now_ns);

// A path with each number in it replaced: `checkpoint-20/rank_3.pt` and `checkpoint-10/rank_0.pt` are of one kind.
std::string masked(const std::string& path);

// What the last checkpoint of each kind consisted of, in this replica.
class CheckpointKinds {
 public:
  using Shape = std::map<std::string, int>;  // masked path beneath the unit → how many files

  // How long [ns] a unit must not have changed until it counts as complete.
  int64_t quiet_ns(const std::string& path, const Unit& unit, const Tree& tree) const;

  bool knows(const std::string& path) const { return shapes_.count(masked(path)) != 0; }
  void learn(const std::string& path, const Tree& tree);
  std::set<std::string> names() const;

  std::string text() const;
  void read(const std::string& text);

 private:
  std::map<std::string, Shape> shapes_;
};

}  // namespace falcon
