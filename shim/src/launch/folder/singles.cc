#include "folder/singles.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <tuple>

#include "common/clock.h"

namespace falcon {
namespace {

constexpr int64_t kRenewedNs = 10 * kSecondNs;  // a durable name that is being written anew does not take longer
constexpr int64_t kReplacedNs = 2 * kSecondNs;
constexpr int64_t kLaterNs = 10 * kSecondNs;  // a name waits no longer for what began after it
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// By the time of the change. In the same tick of the clock the larger file goes first: one that names others is small.
auto order(const std::string& path, const Entry& entry) {
  return std::make_tuple(entry.changed_ns, -entry.bytes, path);
}

}  // namespace

Singles::Singles(const FolderRoot& memory, const FolderRoot& durable, SharedFolder shared, Publication* publication,
                 WriteBack* back, PathErrors* errors)
    : durable_(durable),
      shared_(shared),
      publication_(*publication),
      back_(*back),
      errors_(*errors),
      mover_(memory, durable, shared.part(), Synced::kNames) {}

Outcome Singles::publish(const std::string& path, const Entry& entry, const Progress& progress) {
  if (!durable_.make_parents(path, 0777, true)) return failed(durable_, path);
  const std::optional<Entry> there = durable_.entry(path);
  if (entry.kind == Kind::kFolder || !there || there->kind != Kind::kFolder) {
    return mover_.put(path, entry, path, progress);
  }
  return publication_.replace_folder(path,
                                     [&](const std::string& to) { return mover_.put(path, entry, to, progress); });
}

// False after an error.
bool Singles::put(const std::string& path, const Entry& entry, const Progress& progress, Round* round) {
  const Outcome outcome = publish(path, entry, progress);
  if (outcome.how == Moved::kDone) {
    errors_.clear(path);
    back_.copied(path, entry);
    return true;
  }
  if (outcome.how == Moved::kUnreadable) {
    errors_.note(path, outcome.error + "; it is left out");
    back_.skip(path, entry);
    return true;
  }
  if (outcome.how == Moved::kFailed) {
    errors_.note(path, outcome.error);
    round->failing = true;
  }
  return false;
}

void Singles::put_data(const Groups& groups, const Progress& progress, const std::function<bool()>& is_stale,
                       Round* round) {
  for (const std::string& path : groups.singles) {
    const auto found = back_.pending().find(path);
    if (found == back_.pending().end() || !found->second.finished || is_name(found->second.entry)) continue;
    if (is_stale()) {
      round->more = true;
      return;
    }
    const Entry entry = found->second.entry;
    put(path, entry, progress, round);
  }
}

std::vector<std::string> Singles::names_in_order(const Groups& groups) const {
  std::vector<std::string> names;
  for (const std::string& path : groups.singles) {
    const auto found = back_.pending().find(path);
    if (found != back_.pending().end() && is_name(found->second.entry) && !back_.is_open(path)) names.push_back(path);
  }
  std::sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return order(a, back_.pending().at(a).entry) < order(b, back_.pending().at(b).entry);
  });
  return names;
}

// Nothing waits for a file that is open: a script names a file when it has closed it.
bool Singles::waits_for_units(const Groups& groups, const Change& name, bool is_ended) const {
  for (const auto& [path, unit] : groups.units) {
    const bool later = unit.changed_ns > name.entry.changed_ns;
    // It may replace what the name means, which is gone already.
    const bool too_late = later && (is_ended || back_.last().now_ns - name.since_ns >= kLaterNs);
    if (!unit.changed.empty() && !too_late && !is_stuck(unit, back_.last().now_ns)) return true;
  }
  return std::any_of(groups.singles.begin(), groups.singles.end(), [&](const std::string& path) {
    const auto found = back_.pending().find(path);
    return found != back_.pending().end() && !is_name(found->second.entry) && !back_.is_open(path) &&
           found->second.entry.changed_ns <= name.entry.changed_ns;
  });
}

bool Singles::is_announced(const std::string& path, const Entry& entry) const {
  const auto found = announced_.find(path);
  return found != announced_.end() && unchanged(found->second, entry);
}

void Singles::announce(const Groups& groups, Statement* own) {
  const std::vector<std::string> names = names_in_order(groups);
  const bool under_way = std::any_of(names.begin(), names.end(), [&](const std::string& path) {
    return is_announced(path, back_.pending().at(path).entry);
  });
  if (!under_way && !names.empty()) {
    ++names_round_;
    announced_.clear();
    for (const std::string& path : names) announced_[path] = back_.pending().at(path).entry;
  }
  const bool going = std::any_of(groups.removals.begin(), groups.removals.end(),
                                 [&](const auto& each) { return announced_removals_.count(each.first) != 0; });
  if (!going && !groups.removals.empty()) {
    ++removals_round_;
    announced_removals_.clear();
    for (const auto& [path, absence] : groups.removals) announced_removals_.insert(path);
  }
  own->naming = !names.empty();
  own->names = names_round_;
  own->removals = removals_round_;
}

void Singles::put_names(const Groups& groups, const Agreement& agreement, const OwnLook& look, const Progress& progress,
                        Round* round) {
  const std::vector<std::string> names = names_in_order(groups);
  // A script may be replacing what they name: it has removed the old one, and the new one is not there yet.
  const bool replacing = back_.vanished_ns() != 0 && back_.last().now_ns - back_.vanished_ns() < kReplacedNs;
  if (names.empty() || (replacing && look.ended_ns == 0 && !look.well)) return;
  const bool alone = agreement.is_alone();
  const Agreement::Verdict verdict = alone ? Agreement::Verdict::kPublish : agreement.names_verdict(names_round_, look);
  for (const std::string& path : names) {
    const auto found = back_.pending().find(path);
    if (found == back_.pending().end()) continue;
    const Change& change = found->second;
    if (!change.finished || waits_for_units(groups, change, look.ended_ns != 0 || look.well)) return;
    if (verdict == Agreement::Verdict::kRefuse) return;
    if (verdict == Agreement::Verdict::kWait || (!alone && !is_announced(path, change.entry))) {
      round->waiting = true;
      return;
    }
    const Entry entry = change.entry;
    if (!put(path, entry, progress, round)) return;
  }
}

// After everything that had changed by then. Nothing waits for a file that is open, since the script itself did not
// wait; but a durable one may be the name of what is to go, and just being written anew.
bool Singles::may_remove(const Groups& groups, const Absence& absence) const {
  const bool units = std::any_of(groups.units.begin(), groups.units.end(), [&](const auto& each) {
    return each.second.first_look <= absence.look && !is_stuck(each.second, back_.last().now_ns);
  });
  const bool singles = std::any_of(groups.singles.begin(), groups.singles.end(), [&](const std::string& path) {
    const auto found = back_.pending().find(path);
    if (found == back_.pending().end() || found->second.first_look > absence.look) return false;
    const bool renewed = back_.durable().count(path) != 0 && back_.last().now_ns - found->second.first_ns < kRenewedNs;
    return renewed || !back_.is_open(path);
  });
  return !units && !singles;
}

void Singles::remove(const Groups& groups, const Agreement& agreement, const OwnLook& look, Round* round) {
  if (groups.removals.empty()) return;
  const bool alone = agreement.is_alone();
  const Agreement::Verdict verdict =
      alone ? Agreement::Verdict::kPublish : agreement.removals_verdict(removals_round_, look);
  for (const auto& [path, absence] : groups.removals) {
    if (!may_remove(groups, absence) || verdict == Agreement::Verdict::kRefuse) continue;
    if (!alone && agreement.is_changed_elsewhere(path)) continue;
    if (!alone && (verdict == Agreement::Verdict::kWait || announced_removals_.count(path) == 0)) {
      round->waiting = true;
      continue;
    }
    const Outcome outcome = publication_.remove(path);
    if (outcome.how == Moved::kDone) {
      errors_.clear(path);
      back_.gone(path);
    } else if (outcome.how == Moved::kFailed) {
      errors_.note(path, outcome.error);
      round->failing = true;
    }
  }
}

int64_t Singles::oldest_data_look(const Groups& groups) const {
  int64_t oldest = kNever;
  for (const auto& [path, unit] : groups.units) {
    if (!unit.changed.empty() && !is_stuck(unit, back_.last().now_ns)) oldest = std::min(oldest, unit.first_look);
  }
  for (const std::string& path : groups.singles) {
    const auto found = back_.pending().find(path);
    if (found == back_.pending().end() || is_name(found->second.entry) || back_.is_open(path)) continue;
    oldest = std::min(oldest, found->second.first_look);
  }
  return oldest;
}

int64_t Singles::oldest_look(const Groups& groups) const {
  int64_t oldest = oldest_data_look(groups);
  for (const std::string& path : names_in_order(groups)) {
    oldest = std::min(oldest, back_.pending().at(path).first_look);
  }
  return oldest;
}

}  // namespace falcon
