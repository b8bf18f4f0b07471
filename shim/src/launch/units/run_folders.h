// Distinguishes a run's folder, which holds checkpoints, from a checkpoint, which holds parts. It touches no files.
//
// A run's folder has a file that somebody kept writing to before a checkpoint in it began, and still does when that has
// long been complete (a log); or it has held a checkpoint for a while when another of the same kind begins.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "units/checkpoint_units.h"
#include "units/write_back.h"

namespace falcon {

class RunFolders {
 public:
  // To be called after each look while the ranks run.
  void look(const WriteBack& back, const Groups& groups);

  // Another replica, or an earlier process, knows it for one.
  void add(const std::string& path);

  // The unit has been published.
  void published(const std::string& unit, int64_t now_ns) { published_ns_.emplace(unit, now_ns); }

  const std::set<std::string>& all() const { return folders_; }

 private:
  struct Growth {
    int64_t bytes = 0;
    int64_t since_ns = 0;  // grown by little since
  };

  void note_growth(const WriteBack& back);
  bool holds_checkpoints(const WriteBack& back, const std::string& folder, const std::string& log) const;
  bool gets_another(const WriteBack& back, const std::string& folder) const;

  std::set<std::string> folders_;
  std::map<std::string, Growth> growth_;
  std::map<std::string, int64_t> published_ns_;
};

}  // namespace falcon
