// Decides when a unit to which several replicas write is complete. It touches no files (docs/adr/0114).
//
// Each replica states which version of its part it has staged. When it has read all parts and looked at its own folder
// afterwards, it agrees to exactly these versions. What all agree to is published. Clocks of two replicas are never
// compared.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "units/statement.h"

namespace falcon {

// What a replica knows about itself after a look.
struct OwnLook {
  int64_t number = 0;
  int64_t now_ns = 0;
  int64_t ended_ns = 0;                                            // the ranks are dead since; 0: they run
  bool well = false;                                               // they have all ended with code 0
  int64_t oldest_data_look = std::numeric_limits<int64_t>::max();  // that saw a change which is still to come
  int64_t oldest_look = std::numeric_limits<int64_t>::max();       // the same, of names as well
  std::function<bool(const std::string&)> overlaps;  // whether a change of its own lies in, or above, a unit
};

class Agreement {
 public:
  // `replicas`: how many there are; 0: those that have said anything.
  Agreement(int self, int replicas) : self_(self), replicas_(replicas) {}

  // What was read of the others before the look. `kinds`: of units that each had a part in, in earlier generations.
  void hear(const std::map<int, Statement>& statements, int64_t now_ns);
  void remember(int replica, std::set<std::string> kinds) { kinds_[replica] = std::move(kinds); }

  // Fills in what follows from the others' statements: `agreed`, `refused` and `cleared`.
  void answer(const OwnLook& look, Statement* own);

  enum class Verdict { kWait, kPublish, kRefuse };
  Verdict verdict(const std::string& unit, const Statement& own, const OwnLook& look) const;

  // Whether the others have nothing left that must come before this replica's round of names, or of removals.
  Verdict names_verdict(int64_t round, const OwnLook& look) const;
  Verdict removals_verdict(int64_t round, const OwnLook& look) const;

  // Whether another replica has changes in, beneath or above a path.
  bool is_changed_elsewhere(const std::string& path) const;

  // Whether names of another replica, which follows as well, are still to come.
  bool is_naming_elsewhere() const;

  // The versions of a unit, by replica; for publication.
  std::map<int, int64_t> versions(const std::string& unit, const Statement& own) const;

  bool is_alone() const;
  bool has_open_questions(const Statement& own) const;
  const std::map<int, Statement>& statements() const { return statements_; }

 private:
  enum class Presence { kHere, kLeft, kLost };

  struct Noted {
    int64_t names = 0;
    int64_t names_look = 0;
    int64_t removals = 0;
    int64_t removals_look = 0;
  };

  std::set<int> others() const;
  Presence presence(int replica, const OwnLook& look) const;
  const Statement& statement(int replica) const;
  bool had_part(int replica, const std::string& unit) const;
  bool is_known(const std::string& unit, const Statement& own) const;
  Verdict absent(int replica, const std::string& unit, const Statement& own) const;
  Verdict gone(int replica, const std::string& unit, const std::string& versions, const Statement& own) const;
  Verdict own_absence(const std::string& unit, const Statement& own, const OwnLook& look) const;
  Verdict round_verdict(const OwnLook& look, const std::function<bool(const Statement&)>& is_cleared) const;
  void clear(const OwnLook& look, Statement* own);
  std::set<std::string> staged_units(const Statement& own) const;

  int self_;
  int replicas_;
  std::map<int, Statement> statements_;
  std::map<int, int64_t> heard_ns_;  // when its newest statement came
  int64_t first_ns_ = 0;
  std::map<std::string, int64_t> seen_ns_;  // when a staged unit was first read of
  std::map<int, Noted> noted_;
  std::map<int, std::set<std::string>> kinds_;
};

}  // namespace falcon
