// Makes a unit appear in the durable folder by one rename. Whichever process dies at whatever moment, the next start
// finds the old unit or the new one, whole.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "publication/shared_folder.h"
#include "publication/staging.h"
#include "tree/folder_root.h"
#include "tree/mover.h"

namespace falcon {

class Publication {
 public:
  // `may_publish` is asked before a name appears or goes.
  Publication(const FolderRoot& durable, SharedFolder shared, std::function<bool()> may_publish)
      : durable_(durable), shared_(shared), may_publish_(std::move(may_publish)) {}

  // Takes the parts of these versions, by replica, and publishes the unit. kChanged: another replica was faster, or a
  // part has changed; kFailed: to be finished later.
  Outcome publish(const std::string& unit, const std::map<int, int64_t>& versions);

  // Puts a file or a link where the durable folder has a folder. `put` makes it, at a path of the durable folder.
  Outcome replace_folder(const std::string& path, const std::function<Outcome(const std::string&)>& put);

  // A file, a link, or a folder with all that is in it.
  Outcome remove(const std::string& path);

  // Whether a replica is about to publish the unit.
  bool is_claimed(const std::string& unit) const;

  // Claims of this replica that it could not finish, or that its earlier process has left.
  Outcome finish_claims();

  // Finishes one claim, which may be another replica's, and removes it. What is not agreed on for certain is dropped.
  Outcome finish(const std::string& claim);

  void empty_trash() const;

 private:
  struct Plan {
    std::string unit;
    std::vector<std::string> parts;
    uint64_t inode = 0;  // of what is to be at the unit's place; 0: it is not made yet
  };

  bool is_wanted(const std::string& claim, const std::vector<std::string>& parts) const;
  void give_back(const std::string& claim, const std::string& stage) const;
  Outcome assemble(const std::string& claim, const Plan& plan) const;
  Outcome merge(const std::string& claim, const Plan& plan) const;
  Outcome clone(const std::string& from, const std::string& to, const StagedChanges& changes) const;
  Outcome clone_entry(const std::string& from, const std::string& to, const Entry& entry) const;
  Outcome sync_folders(const std::string& folder) const;
  Outcome record(const std::string& claim, Plan* plan) const;
  Outcome place(const std::string& claim, const Plan& plan) const;
  bool swap(const std::string& claim, const std::string& unit) const;
  void discard(const std::string& path) const;
  Plan read_plan(const std::string& claim) const;

  const FolderRoot& durable_;
  SharedFolder shared_;
  std::function<bool()> may_publish_;
};

}  // namespace falcon
