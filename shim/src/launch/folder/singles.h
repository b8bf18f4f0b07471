// Publishes what is no part of a unit: files and links in the root and in a run's folder, those folders themselves, and
// removals. A large file goes when it is finished. A small one, or a link, may name others: it goes after everything
// that changed before it, in any replica. A removal goes last.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "folder/path_errors.h"
#include "publication/publication.h"
#include "publication/shared_folder.h"
#include "tree/mover.h"
#include "units/agreement.h"
#include "units/checkpoint_units.h"
#include "units/write_back.h"

namespace falcon {

// What became of a round of copies.
struct Round {
  bool looked = false;
  bool more = false;     // there is work that could go on at once
  bool waiting = false;  // for other replicas
  bool failing = false;  // something went wrong that may go right the next time
};

class Singles {
 public:
  Singles(const FolderRoot& memory, const FolderRoot& durable, SharedFolder shared, Publication* publication,
          WriteBack* back, PathErrors* errors);

  // The numbers of the rounds go on behind those that other replicas have answered before.
  void continue_after(int64_t round) { names_round_ = removals_round_ = round; }

  // Large files and folders. `until_ns`: when the look is stale.
  void put_data(const Groups& groups, const Progress& progress, const std::function<bool()>& is_stale, Round* round);

  // Says to the others what is to go, if there are any.
  void announce(const Groups& groups, Statement* own);

  void put_names(const Groups& groups, const Agreement& agreement, const OwnLook& look, const Progress& progress,
                 Round* round);
  void remove(const Groups& groups, const Agreement& agreement, const OwnLook& look, Round* round);

  // The looks that saw the oldest change of a file that names none, and of any.
  int64_t oldest_data_look(const Groups& groups) const;
  int64_t oldest_look(const Groups& groups) const;

 private:
  bool put(const std::string& path, const Entry& entry, const Progress& progress, Round* round);
  Outcome publish(const std::string& path, const Entry& entry, const Progress& progress);
  std::vector<std::string> names_in_order(const Groups& groups) const;
  bool waits_for_units(const Groups& groups, const Change& name, bool is_ended) const;
  bool may_remove(const Groups& groups, const Absence& absence) const;
  bool is_announced(const std::string& path, const Entry& entry) const;

  const FolderRoot& durable_;
  SharedFolder shared_;
  Publication& publication_;
  WriteBack& back_;
  PathErrors& errors_;
  Mover mover_;
  int64_t names_round_ = 0;
  int64_t removals_round_ = 0;
  Tree announced_;  // names, as they were
  std::set<std::string> announced_removals_;
};

}  // namespace falcon
