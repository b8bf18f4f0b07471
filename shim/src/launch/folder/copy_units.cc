// FolderCopy's units: staged, complete, agreed on, published.
#include <algorithm>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "folder/copy.h"

namespace falcon {
namespace {

constexpr int64_t kNamingNs = 2 * kSecondNs;  // other replicas have said meanwhile that they have names to publish

}  // namespace

// Parts that a replica has taken: when that is done with them, they are durable.
void FolderCopy::settle_taken(Round* round) {
  std::vector<std::string> taken;
  for (const auto& [unit, part] : staging_.parts()) {
    if (part.version != 0 && !staging_.is_present(unit)) taken.push_back(unit);
  }
  for (const std::string& unit : taken) {
    if (publication_.is_claimed(unit)) {
      round->waiting = true;
    } else if (!staging_.is_present(unit)) {
      settle(unit);
    }
  }
}

bool FolderCopy::is_published(const Staging::Part& part) const {
  return std::all_of(part.entries.begin(), part.entries.end(), [&](const auto& each) {
    const std::optional<Entry> there = durable_.entry(each.first);
    if (!there || there->kind != each.second.kind) return false;
    return is_copy(each.second, *there) || there->modified_ns > each.second.modified_ns;  // another replica's is newer
  });
}

bool FolderCopy::settle(const std::string& unit) {
  const Staging::Part part = staging_.parts().at(unit);
  staging_.forget(unit);
  if (!is_published(part)) return false;
  for (const std::string& path : part.gone) back_.gone(path);
  for (const auto& [path, entry] : part.entries) {
    errors_.clear(path);
    back_.copied(path, entry);
  }
  errors_.clear(unit);
  kinds_.learn(unit, back_.last().tree);
  runs_.published(unit, surroundings_.now_ns());
  return true;
}

void FolderCopy::stage(Round* round) {
  std::vector<std::string> unwanted;
  for (const auto& [unit, part] : staging_.parts()) {
    if (groups_.units.count(unit) == 0) unwanted.push_back(unit);
  }
  for (const std::string& unit : unwanted) {
    if (staging_.parts().at(unit).version == 0 || staging_.is_present(unit)) staging_.drop(unit);
  }
  for (const auto& [unit, changes] : groups_.units) {
    const auto part = staging_.parts().find(unit);
    const bool taken = part != staging_.parts().end() && part->second.version != 0 && !staging_.is_present(unit);
    if (!taken) stage(unit, changes, round);
  }
}

// False where the part has been taken meanwhile.
bool FolderCopy::drop_stale(const std::string& unit, const Unit& changes) {
  const auto part = staging_.parts().find(unit);
  if (part == staging_.parts().end()) return true;
  const std::set<std::string> wanted(changes.changed.begin(), changes.changed.end());
  std::vector<std::string> stale;
  for (const auto& [path, entry] : part->second.entries) {
    if (wanted.count(path) == 0) stale.push_back(path);
  }
  return std::all_of(stale.begin(), stale.end(),
                     [&](const std::string& path) { return staging_.remove(unit, path).how == Moved::kDone; });
}

void FolderCopy::stage(const std::string& unit, const Unit& changes, Round* round) {
  if (!drop_stale(unit, changes)) return;
  for (const std::string& path : changes.changed) {
    const Change& change = back_.pending().at(path);
    const auto part = staging_.parts().find(unit);
    if (!change.finished) continue;
    if (part != staging_.parts().end()) {
      const auto staged = part->second.entries.find(path);
      if (staged != part->second.entries.end() && unchanged(staged->second, change.entry)) continue;
    }
    if (is_stale()) {
      round->more = true;
      return;
    }
    const Entry entry = change.entry;
    const Outcome outcome = staging_.copy(unit, path, entry, back_.last().number, surroundings_.progress);
    note(path, entry, outcome, round);
    if (outcome.how == Moved::kStopped) return;
  }
}

void FolderCopy::note(const std::string& path, const Entry& entry, const Outcome& outcome, Round* round) {
  if (outcome.how == Moved::kDone) errors_.clear(path);
  if (outcome.how == Moved::kUnreadable) {
    errors_.note(path, outcome.error + "; it is left out");
    back_.skip(path, entry);
  }
  if (outcome.how == Moved::kFailed) {
    errors_.note(path, outcome.error);
    round->failing = true;
  }
  if (outcome.how == Moved::kDone || outcome.how == Moved::kChanged || outcome.how == Moved::kUnreadable) {
    round->more = true;
  }
}

bool FolderCopy::is_staged(const std::string& unit, const Unit& changes) const {
  const auto part = staging_.parts().find(unit);
  if (part == staging_.parts().end()) return changes.changed.empty();
  if (part->second.entries.size() != changes.changed.size() || part->second.last_look >= back_.last().number) {
    return false;
  }
  return std::all_of(changes.changed.begin(), changes.changed.end(), [&](const std::string& path) {
    const auto staged = part->second.entries.find(path);
    return staged != part->second.entries.end() && unchanged(staged->second, back_.pending().at(path).entry);
  });
}

bool FolderCopy::is_quiet(const std::string& unit, const Unit& changes) const {
  if (well_) return true;
  const int64_t now = cut_ns_ != 0 ? cut_ns_ : back_.last().now_ns;
  return now - changes.since_ns >= kinds_.quiet_ns(unit, changes, back_.last().tree);
}

// Nothing but removals waits for what may name it, in any replica.
bool FolderCopy::may_go(const Unit& changes) const {
  if (!changes.changed.empty() || changes.removed.empty()) return !changes.changed.empty();
  if (well_) return !own_.naming;
  return !own_.naming && !agreement_.is_naming_elsewhere() && back_.last().now_ns - changes.since_ns >= kNamingNs;
}

void FolderCopy::freeze(Round* round) {
  for (const auto& [unit, changes] : groups_.units) {
    const auto part = staging_.parts().find(unit);
    const bool frozen = part != staging_.parts().end() && part->second.version != 0;
    if (frozen && !staging_.is_present(unit)) continue;
    const bool complete = !changes.open && changes.finished && is_staged(unit, changes) && may_go(changes);
    if (frozen) {
      const std::set<std::string> gone(changes.removed.begin(), changes.removed.end());
      if (!complete || part->second.gone != gone) staging_.thaw(unit);
      if (!complete || part->second.gone != gone) round->more = true;
    } else if (complete && is_quiet(unit, changes)) {
      const Outcome outcome = staging_.freeze(unit, changes.removed, own_.sequence + 1);
      if (outcome.how == Moved::kFailed) errors_.note(unit, outcome.error);
      if (outcome.how == Moved::kFailed) round->failing = true;
    }
  }
}

void FolderCopy::publish_units(Round* round) {
  const OwnLook look = own_look();
  std::vector<std::string> frozen;
  for (const auto& [unit, part] : staging_.parts()) {
    if (part.version != 0) frozen.push_back(unit);
  }
  for (const std::string& unit : frozen) {
    const Agreement::Verdict verdict = agreement_.verdict(unit, own_, look);
    if (verdict == Agreement::Verdict::kWait) round->waiting = true;
    if (verdict != Agreement::Verdict::kPublish) continue;
    const Outcome outcome = publication_.publish(unit, agreement_.versions(unit, own_));
    if (outcome.how == Moved::kDone && !settle(unit)) round->more = true;
    if (outcome.how == Moved::kChanged) round->waiting = true;
    if (outcome.how == Moved::kFailed) {
      errors_.note(unit, outcome.error);
      round->failing = true;
    }
  }
}

}  // namespace falcon
