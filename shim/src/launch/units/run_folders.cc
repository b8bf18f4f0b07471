#include "units/run_folders.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/clock.h"
#include "tree/folder_root.h"

namespace falcon {
namespace {

constexpr int64_t kBusyNs = 3 * kSecondNs;      // a log that is opened for each line
constexpr int64_t kSettledNs = 10 * kSecondNs;  // a checkpoint that has not changed for so long is complete
constexpr int64_t kLongNs = 20 * kSecondNs;     // the same, where the log may be a part of it
constexpr int64_t kApartNs = 5 * kSecondNs;     // files of one checkpoint begin within less
constexpr int64_t kLogBytes = 1 << 20;          // a log grows by less, in that time
constexpr int64_t kLaterNs = 30 * kSecondNs;    // a part of a checkpoint is not so late
constexpr size_t kMostFolders = 4096;

// What a folder's entry has in it that is not durable yet.
struct Child {
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  int64_t since_ns = 0;
  bool has_files = false;
  bool is_busy = false;
  bool is_file = false;
};

bool is_busy(const WriteBack& back, const std::string& path, const Change& change) {
  return back.is_open(path) ||
         (change.entry.kind == Kind::kFile && change.look > 1 && back.last().now_ns - change.since_ns < kBusyNs);
}

// By the names of the entries directly in `folder`.
std::map<std::string, Child> children_of(const WriteBack& back, const std::string& folder) {
  std::map<std::string, Child> children;
  const auto& pending = back.pending();
  for (auto at = pending.lower_bound(folder + "/"); at != pending.end() && is_beneath(at->first, folder); ++at) {
    const auto& [path, change] = *at;
    const size_t slash = path.find('/', folder.size() + 1);
    Child& child = children[path.substr(0, slash)];
    child.first_ns = std::min(child.first_ns, change.first_ns);
    child.since_ns = std::max(child.since_ns, change.since_ns);
    child.is_busy = child.is_busy || is_busy(back, path, change) || !change.finished;
    child.has_files = child.has_files || change.entry.kind == Kind::kFile;
    child.is_file = child.is_file || (slash == std::string::npos && change.entry.kind == Kind::kFile);
  }
  return children;
}

}  // namespace

void RunFolders::add(const std::string& path) {
  for (std::string folder = path; !folder.empty(); folder = folder_of(folder)) {
    if (folders_.size() < kMostFolders) folders_.insert(folder);
  }
}

void RunFolders::note_growth(const WriteBack& back) {
  for (auto at = growth_.begin(); at != growth_.end();) {
    at = back.pending().count(at->first) == 0 && back.last().writing.count(at->first) == 0 ? growth_.erase(at)
                                                                                           : std::next(at);
  }
  const auto note = [&](const std::string& path, int64_t bytes) {
    const auto [at, fresh] = growth_.try_emplace(path, Growth{bytes, back.last().now_ns});
    if (!fresh && (bytes - at->second.bytes > kLogBytes || bytes < at->second.bytes)) {
      at->second = {bytes, back.last().now_ns};
    }
  };
  for (const auto& [path, change] : back.pending()) {
    if (change.entry.kind == Kind::kFile && is_busy(back, path, change)) note(path, change.entry.bytes);
  }
  for (const std::string& path : back.last().writing) {
    const auto found = back.last().tree.find(path);
    if (found != back.last().tree.end() && back.is_open(path)) note(path, found->second.bytes);
  }
}

bool RunFolders::holds_checkpoints(const WriteBack& back, const std::string& folder, const std::string& log) const {
  const int64_t now = back.last().now_ns;
  const auto change = back.pending().find(log);
  const int64_t begun_ns = change == back.pending().end() ? 0 : change->second.first_ns;
  const int64_t slow_ns = now - growth_.at(log).since_ns;
  const auto children = children_of(back, folder);
  return std::any_of(children.begin(), children.end(), [&](const auto& each) {
    const Child& child = each.second;
    if (each.first == log || !child.has_files || child.is_busy || child.first_ns < begun_ns) return false;
    const bool apart = child.first_ns - begun_ns >= kApartNs;
    if (apart && !child.is_file) return now - child.since_ns >= kSettledNs;
    const int64_t wait_ns = apart ? kSettledNs : kLongNs;
    return now - child.since_ns >= wait_ns && slow_ns >= wait_ns;
  });
}

bool RunFolders::gets_another(const WriteBack& back, const std::string& folder) const {
  const auto change = back.pending().find(folder);
  const std::string parent = folder_of(folder);
  if (parent.empty() || folders_.count(parent) != 0 || back.durable().count(folder) != 0) return false;
  const auto holder = back.durable().find(parent);
  if (holder == back.durable().end() || holder->second.kind != Kind::kFolder) return false;
  for (const auto& [unit, at_ns] : published_ns_) {
    if ((unit == parent || is_beneath(parent, unit)) && change->second.first_ns - at_ns < kLaterNs) return false;
  }
  const std::string kind = masked(name_of(folder));
  const auto& durable = back.durable();
  for (auto at = durable.lower_bound(parent + "/"); at != durable.end() && is_beneath(at->first, parent); ++at) {
    if (at->second.kind != Kind::kFile) continue;
    const size_t slash = at->first.find('/', parent.size() + 1);
    if (slash == std::string::npos) continue;
    if (masked(at->first.substr(parent.size() + 1, slash - parent.size() - 1)) == kind) return true;
  }
  return false;
}

void RunFolders::look(const WriteBack& back, const Groups& groups) {
  note_growth(back);
  std::vector<std::string> found;
  for (const auto& [log, growth] : growth_) {
    const std::string folder = folder_of(log);
    if (folder.empty() || folders_.count(folder) != 0) continue;
    const auto change = back.pending().find(log);
    if (change != back.pending().end() && !is_busy(back, log, change->second)) continue;
    if (groups.units.count(unit_of(log, false, folders_)) != 0 && holds_checkpoints(back, folder, log)) {
      found.push_back(folder);
    }
  }
  for (const auto& [path, unit] : groups.units) {
    for (const std::string& changed : unit.changed) {
      if (back.pending().at(changed).entry.kind == Kind::kFolder && gets_another(back, changed)) {
        found.push_back(folder_of(changed));
      }
    }
  }
  for (const std::string& folder : found) add(folder);
}

}  // namespace falcon
