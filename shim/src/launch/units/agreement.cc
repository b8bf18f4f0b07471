#include "units/agreement.h"

#include <algorithm>

#include "common/clock.h"
#include "tree/folder_root.h"
#include "units/checkpoint_units.h"

namespace falcon {
namespace {

constexpr int64_t kAbsentNs = 2 * kSecondNs;    // a replica that has no part of a unit waits so long for one
constexpr int64_t kLackingNs = 10 * kSecondNs;  // and so long where it had one in the last of that kind
constexpr int64_t kSilentNs = 3 * kSecondNs;

std::string text_of(const std::map<int, int64_t>& versions) {
  std::string text;
  for (const auto& [replica, version] : versions) {
    text += (text.empty() ? "" : ",") + std::to_string(replica) + "." + std::to_string(version);
  }
  return text;
}

bool is_unsettled(const Statement& statement, const std::string& unit) {
  const auto found = statement.units.find(unit);
  return found != statement.units.end() && found->second == 0;
}

bool has_part(const Statement& statement, const std::string& unit) { return statement.units.count(unit) != 0; }

bool agrees(const Statement& statement, const std::string& unit, const std::string& versions) {
  const auto found = statement.agreed.find(unit);
  return found != statement.agreed.end() && found->second == versions;
}

}  // namespace

void Agreement::hear(const std::map<int, Statement>& statements, int64_t now_ns) {
  if (first_ns_ == 0) first_ns_ = now_ns;
  for (const auto& [replica, statement] : statements) {
    if (replica == self_) continue;
    const auto known = statements_.find(replica);
    if (known != statements_.end() && known->second.sequence == statement.sequence) continue;
    statements_[replica] = statement;
    heard_ns_[replica] = now_ns;
  }
}

std::set<int> Agreement::others() const {
  std::set<int> others;
  for (int replica = 0; replica < replicas_; ++replica) others.insert(replica);
  if (replicas_ == 0) {
    for (const auto& [replica, statement] : statements_) others.insert(replica);
  }
  others.erase(self_);
  return others;
}

bool Agreement::is_alone() const { return others().empty(); }

const Statement& Agreement::statement(int replica) const {
  static const Statement kNothing;
  const auto found = statements_.find(replica);
  return found != statements_.end() ? found->second : kNothing;
}

Agreement::Presence Agreement::presence(int replica, const OwnLook& look) const {
  if (statement(replica).state == Following::kLeft) return Presence::kLeft;
  if (look.ended_ns == 0) return Presence::kHere;  // it may come back
  const auto heard = heard_ns_.find(replica);
  const int64_t since_ns = heard != heard_ns_.end() ? heard->second : first_ns_;
  const bool silent = look.now_ns - since_ns >= kSilentNs && look.now_ns - look.ended_ns >= kSecondNs;
  return silent ? Presence::kLost : Presence::kHere;
}

bool Agreement::had_part(int replica, const std::string& unit) const {
  const auto known = kinds_.find(replica);
  return statement(replica).kinds.count(masked(unit)) != 0 ||
         (known != kinds_.end() && known->second.count(masked(unit)) != 0);
}

// Whether any replica has published one of that kind before.
bool Agreement::is_known(const std::string& unit, const Statement& own) const {
  if (own.kinds.count(masked(unit)) != 0) return true;
  return std::any_of(statements_.begin(), statements_.end(),
                     [&](const auto& each) { return each.second.kinds.count(masked(unit)) != 0; }) ||
         std::any_of(kinds_.begin(), kinds_.end(),
                     [&](const auto& each) { return each.second.count(masked(unit)) != 0; });
}

std::map<int, int64_t> Agreement::versions(const std::string& unit, const Statement& own) const {
  std::map<int, int64_t> versions;
  const auto add = [&](int replica, const Statement& statement) {
    const auto found = statement.units.find(unit);
    if (found != statement.units.end() && found->second != 0) versions[replica] = found->second;
  };
  add(self_, own);
  for (const int replica : others()) add(replica, statement(replica));
  return versions;
}

std::set<std::string> Agreement::staged_units(const Statement& own) const {
  std::set<std::string> staged;
  const auto add = [&](const Statement& statement) {
    for (const auto& [unit, version] : statement.units) {
      if (version != 0) staged.insert(unit);
    }
  };
  add(own);
  for (const int replica : others()) add(statement(replica));
  return staged;
}

// Of a replica whose ranks are dead, and which has no part of the unit: was it about to write one?
Agreement::Verdict Agreement::absent(int replica, const std::string& unit, const Statement& own) const {
  if (statement(replica).well) return Verdict::kPublish;
  if (had_part(replica, unit)) return Verdict::kRefuse;
  return is_known(unit, own) ? Verdict::kPublish : Verdict::kRefuse;
}

Agreement::Verdict Agreement::own_absence(const std::string& unit, const Statement& own, const OwnLook& look) const {
  if (look.overlaps && look.overlaps(unit)) return Verdict::kWait;
  if (look.well) return Verdict::kPublish;
  const bool had = own.kinds.count(masked(unit)) != 0 || had_part(self_, unit);
  const int64_t until_ns = look.ended_ns != 0 ? look.ended_ns : look.now_ns;
  if (until_ns - seen_ns_.at(unit) >= (had ? kLackingNs : kAbsentNs)) return Verdict::kPublish;
  if (look.ended_ns == 0) return Verdict::kWait;
  return !had && is_known(unit, own) ? Verdict::kPublish : Verdict::kRefuse;
}

void Agreement::answer(const OwnLook& look, Statement* own) {
  const std::set<std::string> staged = staged_units(*own);
  for (auto at = seen_ns_.begin(); at != seen_ns_.end();) {
    at = staged.count(at->first) == 0 ? seen_ns_.erase(at) : std::next(at);
  }
  own->agreed.clear();
  own->refused.clear();
  for (const std::string& unit : staged) {
    seen_ns_.emplace(unit, look.now_ns);
    Verdict verdict = Verdict::kPublish;
    if (is_unsettled(*own, unit)) verdict = Verdict::kWait;
    if (!has_part(*own, unit)) verdict = own_absence(unit, *own, look);
    if (verdict == Verdict::kPublish) own->agreed[unit] = text_of(versions(unit, *own));
    if (verdict == Verdict::kRefuse) own->refused.insert(unit);
  }
  clear(look, own);
}

// What was there, and not open, in the first look after another's round was read of must be durable before it.
void Agreement::clear(const OwnLook& look, Statement* own) {
  own->cleared.clear();
  for (const int replica : others()) {
    const Statement& theirs = statement(replica);
    Noted& noted = noted_[replica];
    if (theirs.names != noted.names) {
      noted.names = theirs.names;
      noted.names_look = look.number;
    }
    if (theirs.removals != noted.removals) {
      noted.removals = theirs.removals;
      noted.removals_look = look.number;
    }
    const bool names = look.oldest_data_look > noted.names_look;
    const bool removals = look.oldest_look > noted.removals_look;
    own->cleared[replica] = {names ? noted.names : 0, removals ? noted.removals : 0};
  }
}

Agreement::Verdict Agreement::gone(int replica, const std::string& unit, const std::string& versions,
                                   const Statement& own) const {
  const Statement& theirs = statement(replica);
  if (agrees(theirs, unit, versions)) return Verdict::kPublish;
  if (has_part(theirs, unit) || theirs.refused.count(unit) != 0) return Verdict::kRefuse;
  return absent(replica, unit, own);
}

Agreement::Verdict Agreement::verdict(const std::string& unit, const Statement& own, const OwnLook& look) const {
  const std::string wanted = text_of(versions(unit, own));
  if (!agrees(own, unit, wanted)) return Verdict::kWait;
  Verdict verdict = Verdict::kPublish;
  for (const int replica : others()) {
    const Statement& theirs = statement(replica);
    Verdict one = agrees(theirs, unit, wanted) ? Verdict::kPublish : Verdict::kWait;
    if (theirs.refused.count(unit) != 0) one = Verdict::kRefuse;
    if (presence(replica, look) != Presence::kHere) one = gone(replica, unit, wanted, own);
    if (one == Verdict::kRefuse) return one;
    if (one == Verdict::kWait) verdict = one;
  }
  return verdict;
}

Agreement::Verdict Agreement::round_verdict(const OwnLook& look,
                                            const std::function<bool(const Statement&)>& is_cleared) const {
  Verdict verdict = Verdict::kPublish;
  for (const int replica : others()) {
    const Statement& theirs = statement(replica);
    if (is_cleared(theirs)) continue;
    const Presence there = presence(replica, look);
    if (there == Presence::kHere) {
      verdict = Verdict::kWait;
      continue;
    }
    const auto known = kinds_.find(replica);
    const bool writes = !theirs.kinds.empty() || (known != kinds_.end() && !known->second.empty());
    if (!theirs.units.empty() || (there == Presence::kLost && writes)) return Verdict::kRefuse;
  }
  return verdict;
}

Agreement::Verdict Agreement::names_verdict(int64_t round, const OwnLook& look) const {
  return round_verdict(look, [&](const Statement& theirs) {
    const auto cleared = theirs.cleared.find(self_);
    return cleared != theirs.cleared.end() && cleared->second.first >= round;
  });
}

Agreement::Verdict Agreement::removals_verdict(int64_t round, const OwnLook& look) const {
  return round_verdict(look, [&](const Statement& theirs) {
    const auto cleared = theirs.cleared.find(self_);
    return cleared != theirs.cleared.end() && cleared->second.second >= round;
  });
}

bool Agreement::is_changed_elsewhere(const std::string& path) const {
  const std::set<int> others = this->others();
  return std::any_of(others.begin(), others.end(), [&](int replica) {
    const Statement& theirs = statement(replica);
    return std::any_of(theirs.units.begin(), theirs.units.end(), [&](const auto& each) {
      return each.first == path || is_beneath(each.first, path) || is_beneath(path, each.first);
    });
  });
}

bool Agreement::is_naming_elsewhere() const {
  const std::set<int> others = this->others();
  return std::any_of(others.begin(), others.end(), [&](int replica) {
    return statement(replica).naming && statement(replica).state != Following::kLeft;
  });
}

bool Agreement::has_open_questions(const Statement& own) const { return !is_alone() && !staged_units(own).empty(); }

}  // namespace falcon
