// Keeps the script's folder, in memory, equal to the durable one (docs/adr/0114): one replica, one round at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "folder/path_errors.h"
#include "folder/singles.h"
#include "folder/surroundings.h"
#include "publication/claim.h"
#include "publication/publication.h"
#include "publication/shared_folder.h"
#include "publication/staging.h"
#include "tree/folder_root.h"
#include "units/agreement.h"
#include "units/checkpoint_units.h"
#include "units/run_folders.h"
#include "units/write_back.h"

namespace falcon {

struct CopyOptions {
  std::string memory;  // the script's folder
  std::string folder;  // the durable one
  std::string owner;   // the job's uid
  int64_t memory_bytes = 0;
  int generation = 0;
  int replica = 0;
  int replicas = 0;  // that save into the folder; 0: not known
  RootLimits memory_limits;
  RootLimits folder_limits;
};

class FolderCopy {
 public:
  FolderCopy(const CopyOptions& options, Surroundings surroundings);
  FolderCopy(const FolderCopy&) = delete;
  FolderCopy& operator=(const FolderCopy&) = delete;

  // Takes the durable folder over and, unless the ranks run already, fills the script's from it. Why that failed.
  std::string begin(bool resume);

  // Looks at the script's folder, and does what may be done until the look is stale.
  Round round();

  void fail();
  void end_well();
  void flush();  // the ranks are dead

  // The last word to the other replicas.
  void leave();

  // Also while a long copy is under way.
  void show_life();

  // Half of the memory is kept free for what comes next.
  void make_room();

  // Whether another job, or a newer generation, has the durable folder.
  bool is_lost() const { return lost_; }
  std::string error() const { return errors_.text(); }
  // Some units that are not durable, by their names.
  std::string unfinished() const;

  // Whether other replicas wait for an answer.
  bool is_asked() const { return agreement_.has_open_questions(own_); }
  const WriteBack& back() const { return back_; }

 private:
  bool open_roots();
  void keep_durable(const Tree& durable, Tree* memory) const;
  void read_history();
  void save_history();
  void hear();
  bool take_look();
  void forget_errors();
  void settle_taken(Round* round);
  bool settle(const std::string& unit);
  bool is_published(const Staging::Part& part) const;
  void stage(Round* round);
  void stage(const std::string& unit, const Unit& changes, Round* round);
  bool drop_stale(const std::string& unit, const Unit& changes);
  void note(const std::string& path, const Entry& entry, const Outcome& outcome, Round* round);
  void freeze(Round* round);
  bool may_go(const Unit& changes) const;
  bool is_staged(const std::string& unit, const Unit& changes) const;
  bool is_quiet(const std::string& unit, const Unit& changes) const;
  void publish_units(Round* round);
  OwnLook own_look() const;
  void state();
  bool still_ours();
  bool is_stale() const;

  CopyOptions options_;
  Surroundings surroundings_;
  FolderRoot memory_;
  FolderRoot durable_;
  SharedFolder shared_;
  Claim claim_;
  PathErrors errors_;
  std::map<std::string, std::string> unread_;
  Agreement agreement_;
  Publication publication_;
  Staging staging_;
  WriteBack back_;
  Singles singles_;
  RunFolders runs_;
  CheckpointKinds kinds_;
  Groups groups_;
  Statement own_;
  std::string stated_;
  std::string history_;
  int64_t stated_ns_ = 0;
  int64_t looks_ = 0;
  int64_t look_ns_ = 0;
  int64_t look_cost_ns_ = 0;
  int64_t cut_ns_ = 0;    // a rank has failed, or all are dead: what was not complete by then may be torn; 0: not so
  int64_t ended_ns_ = 0;  // the ranks are dead
  bool well_ = false;
  bool lost_ = false;
};

}  // namespace falcon
