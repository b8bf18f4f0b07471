// Finds what the script's folder has and the durable one lacks, and which of it is finished. It touches no files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tree/tree.h"

namespace falcon {

// One look at the script's folder, twice, then at what is open, then at the processes. So whatever was there before an
// entry that stayed the same is in the tree, too; and a process that is killed is about to end before its files are
// closed.
struct Look {
  int64_t number = 0;
  int64_t now_ns = 0;  // by a clock that only goes forward
  Tree tree;
  std::map<std::string, std::string> unread;  // path → why it could not be seen
  std::set<std::string> moving;               // changed while it was looked at
  std::set<std::string> writing;              // open for writing
  bool somebody_gone = false;                 // a process has ended since the look before
};

struct Change {
  Entry entry;
  int64_t look = 0;        // that saw this change
  int64_t since_ns = 0;    // of that look
  int64_t first_look = 0;  // that saw the first change since it was durable
  int64_t first_ns = 0;    // of that look
  bool finished = false;
};

struct Absence {
  int64_t look = 0;  // that missed the name
  int64_t since_ns = 0;
};

struct Backlog {
  int64_t files = 0;
  int64_t bytes = 0;
};

class WriteBack {
 public:
  // `durable`: what the durable folder has, by the entries of the script's own. `folder`: where the durable one is, as
  // links in place of files name it.
  WriteBack(Tree durable, std::string folder) : durable_(std::move(durable)), folder_(std::move(folder)) {}

  // `is_whole`: whether a file proves by its content that all of it is there.
  void look(Look look, const std::function<bool(const std::string&)>& is_whole);

  // A rank has failed: whatever is not finished by now may have been cut off.
  void fail() { failed_ = true; }

  // All ranks have ended well: whatever is closed is finished.
  void end_well() { ended_well_ = true; }

  const Look& last() const { return last_; }
  const Tree& durable() const { return durable_; }
  const std::map<std::string, Change>& pending() const { return pending_; }

  // Durable, and gone from the script's folder. What lies beneath something that is no folder now is left out: it goes
  // when that comes.
  const std::map<std::string, Absence>& removed() const { return removed_; }

  // Open for writing, or changed in the last look.
  bool is_open(const std::string& path) const;

  // When something vanished before it was durable; 0: never. Its name may be about to come back.
  int64_t vanished_ns() const { return vanished_ns_; }

  // The durable folder has it now, by this entry of the script's folder, and nothing beneath it if it is no folder.
  void copied(const std::string& path, const Entry& entry);

  // The durable folder has neither it nor anything beneath it.
  void gone(const std::string& path);

  // Leaves out a change that cannot be read, until it changes again or some time has passed.
  void skip(const std::string& path, const Entry& entry) { skipped_[path] = {entry, last_.now_ns}; }

  // The oldest files that may be replaced with links to their durable copies, until no more than `most` bytes are
  // left. Names that were written more than once stay: a process may be about to write to them in place.
  std::vector<std::string> replaceable(int64_t most) const;

  // Whether all of a tree is in the durable folder.
  bool is_durable(const Tree& tree) const;

  Backlog backlog() const;
  int64_t used_bytes() const;
  int64_t links() const;

  // The durable file whose content is the newest; an empty path without any.
  std::pair<std::string, int64_t> newest() const;

  bool is_link_of_ours(const std::string& path, const Entry& entry) const;

 private:
  void note(const std::string& path, const Entry& entry);
  void note_absences();
  bool is_hidden(const std::string& path) const;
  bool is_durable(const std::string& path, const Entry& entry) const;
  bool finished(const std::string& path, const Change& change,
                const std::function<bool(const std::string&)>& is_whole) const;

  Tree durable_;
  std::string folder_;
  Look last_;
  std::map<std::string, Change> pending_;
  std::map<std::string, Absence> removed_;
  std::map<std::string, std::pair<Entry, int64_t>> skipped_;  // path → what it was, and when it was left out
  std::set<std::string> rewritten_;
  int64_t gone_look_ = -1;  // the newest that missed a process
  int64_t vanished_ns_ = 0;
  bool failed_ = false;
  bool ended_well_ = false;
};

}  // namespace falcon
