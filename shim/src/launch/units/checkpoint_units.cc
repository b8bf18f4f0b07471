#include "units/checkpoint_units.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <utility>

#include "common/clock.h"
#include "common/percent.h"
#include "tree/folder_root.h"

namespace falcon {
namespace {

constexpr int64_t kNameBytes = 1 << 20;
constexpr int64_t kHeldOpenNs = 30 * kSecondNs;
constexpr int64_t kFirstQuietNs = 2 * kSecondNs;     // between two files of one checkpoint whose shape is not known
constexpr int64_t kLackingQuietNs = 10 * kSecondNs;  // the last of its kind had more, or there is no file yet
constexpr size_t kMostKinds = 1024;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

Unit& unit_at(Groups* groups, const std::string& path) {
  const auto [at, fresh] = groups->units.try_emplace(path);
  if (fresh) at->second.first_look = at->second.changed_ns = kNever;
  return at->second;
}

void add_change(const WriteBack& back, const std::string& path, const Change& change, Unit* unit) {
  unit->changed.push_back(path);
  unit->finished = unit->finished && change.finished;
  if (back.is_open(path)) return;
  if (change.entry.kind != Kind::kFolder) ++unit->closed;
  unit->since_ns = std::max(unit->since_ns, change.since_ns);
  unit->first_look = std::min(unit->first_look, change.first_look);
  unit->changed_ns = std::min(unit->changed_ns, change.entry.changed_ns);
}

bool is_folder(const Tree& tree, const std::string& path) {
  const auto found = tree.find(path);
  return found != tree.end() && found->second.kind == Kind::kFolder;
}

void add_removed(const WriteBack& back, const std::set<std::string>& run_folders, Groups* groups) {
  for (const auto& [path, absence] : back.removed()) {
    const std::string parent = folder_of(path);
    if (!parent.empty() && back.removed().count(parent) != 0) continue;
    const std::string owner = unit_of(path, false, run_folders);
    if (owner.empty() || !is_folder(back.last().tree, owner)) {
      groups->removals.emplace(path, absence);
      continue;
    }
    Unit& unit = unit_at(groups, owner);
    unit.removed.push_back(path);
    ++unit.closed;
    unit.since_ns = std::max(unit.since_ns, absence.since_ns);
    unit.first_look = std::min(unit.first_look, absence.look);
  }
}

// Where another of the same kind comes (`step-2` for `step-1`), what goes may still be named by something outside the
// unit: it stays until that has moved on.
void defer_removals(const WriteBack& back, Unit* unit) {
  std::set<std::string> coming;
  for (const std::string& path : unit->changed) {
    if (back.durable().count(path) == 0) coming.insert(masked(path));
  }
  std::vector<std::string> now;
  for (const std::string& path : unit->removed) {
    (coming.count(masked(path)) == 0 ? now : unit->deferred).push_back(path);
  }
  unit->removed = std::move(now);
}

CheckpointKinds::Shape shape_of(const std::string& unit, const Tree& tree) {
  CheckpointKinds::Shape shape;
  for (auto at = tree.lower_bound(unit + "/"); at != tree.end() && is_beneath(at->first, unit); ++at) {
    if (at->second.kind != Kind::kFolder) ++shape[masked(at->first.substr(unit.size() + 1))];
  }
  return shape;
}

bool covers(const CheckpointKinds::Shape& shape, const CheckpointKinds::Shape& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& part) {
    const auto found = shape.find(part.first);
    return found != shape.end() && found->second >= part.second;
  });
}

}  // namespace

std::string unit_of(const std::string& path, bool is_folder, const std::set<std::string>& run_folders) {
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    std::string folder = path.substr(0, slash);
    if (run_folders.count(folder) == 0) return folder;
  }
  return is_folder && run_folders.count(path) == 0 ? path : "";
}

Groups group(const WriteBack& back, const std::set<std::string>& run_folders) {
  Groups groups;
  for (const auto& [path, change] : back.pending()) {
    const std::string owner = unit_of(path, change.entry.kind == Kind::kFolder, run_folders);
    if (owner.empty()) {
      groups.singles.push_back(path);
    } else {
      add_change(back, path, change, &unit_at(&groups, owner));
    }
  }
  add_removed(back, run_folders, &groups);
  if (groups.units.empty()) return groups;
  for (auto& [path, unit] : groups.units) {
    if (back.durable().count(path) != 0) unit.rewrites = true;
    defer_removals(back, &unit);
  }
  for (const auto* paths : {&back.last().writing, &back.last().moving}) {
    for (const std::string& path : *paths) {
      const auto unit = groups.units.find(unit_of(path, false, run_folders));
      if (unit != groups.units.end() && back.is_open(path)) unit->second.open = true;
    }
  }
  return groups;
}

bool is_name(const Entry& entry) {
  return entry.kind == Kind::kLink || (entry.kind == Kind::kFile && entry.bytes < kNameBytes);
}

bool is_stuck(const Unit& unit, int64_t now_ns) {
  return unit.open && (unit.closed == 0 || now_ns - unit.since_ns >= kHeldOpenNs);
}

std::string masked(const std::string& path) {
  std::string mask;
  for (const char c : path) {
    if (isdigit(static_cast<unsigned char>(c)) == 0) {
      mask += c;
    } else if (mask.empty() || mask.back() != '#') {
      mask += '#';
    }
  }
  return mask;
}

int64_t CheckpointKinds::quiet_ns(const std::string& path, const Unit& unit, const Tree& tree) const {
  const Shape shape = shape_of(path, tree);
  // Distributed checkpoints make their folder, agree on who writes what, and only then open their files.
  if (shape.empty()) return kLackingQuietNs;
  const auto known = shapes_.find(masked(path));
  if (known == shapes_.end()) return kFirstQuietNs;
  if (!covers(shape, known->second)) return kLackingQuietNs;
  return unit.rewrites ? kFirstQuietNs : 0;
}

void CheckpointKinds::learn(const std::string& path, const Tree& tree) {
  Shape shape = shape_of(path, tree);
  // Any first file of the next one would cover the shape of an empty folder.
  if (shape.empty() || (shapes_.size() >= kMostKinds && !knows(path))) return;
  shapes_[masked(path)] = std::move(shape);
}

std::set<std::string> CheckpointKinds::names() const {
  std::set<std::string> names;
  for (const auto& [name, shape] : shapes_) names.insert(name);
  return names;
}

std::string CheckpointKinds::text() const {
  std::string text;
  for (const auto& [name, shape] : shapes_) {
    text += "kind " + percent_encoded(name) + "\n";
    for (const auto& [part, count] : shape)
      text += "part " + percent_encoded(part) + " " + std::to_string(count) + "\n";
  }
  return text;
}

void CheckpointKinds::read(const std::string& text) {
  std::istringstream lines(text);
  Shape* shape = nullptr;
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 2 && words[0] == "kind" && shapes_.size() < kMostKinds) shape = &shapes_[words[1]];
    if (words.size() == 3 && words[0] == "part" && shape != nullptr) (*shape)[words[1]] = atoi(words[2].c_str());
  }
}

}  // namespace falcon
