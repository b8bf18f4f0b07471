#include "units/write_back.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "tree/folder_root.h"

namespace falcon {
namespace {

// A file that was closed about when a process ended: if a rank was killed, the launcher says so long before.
constexpr int64_t kUnsureNs = 10 * kSecondNs;
constexpr int64_t kSkippedNs = 30 * kSecondNs;  // the folder above it may have been closed, and be open again

}  // namespace

bool WriteBack::is_link_of_ours(const std::string& path, const Entry& entry) const {
  return entry.kind == Kind::kLink && entry.target == joined(folder_, path);
}

void WriteBack::look(Look look, const std::function<bool(const std::string&)>& is_whole) {
  last_ = std::move(look);
  if (last_.somebody_gone) gone_look_ = last_.number;
  for (const auto& [path, entry] : last_.tree) note(path, entry);
  for (auto at = pending_.begin(); at != pending_.end();) {
    const bool gone = last_.tree.count(at->first) == 0;
    if (gone) vanished_ns_ = last_.now_ns;
    at = gone ? pending_.erase(at) : std::next(at);
  }
  note_absences();
  for (auto& [path, change] : pending_) {
    if (!change.finished) change.finished = finished(path, change, is_whole);
  }
}

// Whether it lies at or beneath a place that could not be seen, or beneath something that is no folder now.
bool WriteBack::is_hidden(const std::string& path) const {
  if (last_.unread.count(path) != 0) return true;
  for (std::string folder = folder_of(path); !folder.empty(); folder = folder_of(folder)) {
    const auto found = last_.tree.find(folder);
    if (last_.unread.count(folder) != 0) return true;
    if (found != last_.tree.end()) return found->second.kind != Kind::kFolder;
  }
  return false;
}

void WriteBack::note_absences() {
  for (const auto& [path, entry] : durable_) {
    if (last_.tree.count(path) != 0) continue;
    if (is_hidden(path)) {
      removed_.erase(path);
    } else {
      removed_.emplace(path, Absence{last_.number, last_.now_ns});
    }
  }
}

bool WriteBack::is_durable(const std::string& path, const Entry& entry) const {
  const auto durable = durable_.find(path);
  return is_link_of_ours(path, entry) || (durable != durable_.end() && unchanged(durable->second, entry));
}

bool WriteBack::is_durable(const Tree& tree) const {
  return std::all_of(tree.begin(), tree.end(), [&](const auto& each) { return is_durable(each.first, each.second); });
}

bool WriteBack::is_open(const std::string& path) const {
  const auto found = last_.tree.find(path);
  const bool file = found != last_.tree.end() && found->second.kind == Kind::kFile;
  return last_.moving.count(path) != 0 || (file && last_.writing.count(path) != 0);
}

void WriteBack::note(const std::string& path, const Entry& entry) {
  removed_.erase(path);
  const auto skipped = skipped_.find(path);
  const bool left_out = skipped != skipped_.end() && unchanged(skipped->second.first, entry) &&
                        last_.now_ns - skipped->second.second < kSkippedNs;
  if (!left_out && skipped != skipped_.end()) skipped_.erase(skipped);
  if (left_out || is_durable(path, entry)) {
    pending_.erase(path);
    return;
  }
  const auto pending = pending_.find(path);
  if (pending == pending_.end() || !unchanged(pending->second.entry, entry)) {
    const bool again = pending != pending_.end();
    const int64_t first_look = again ? pending->second.first_look : last_.number;
    const int64_t first_ns = again ? pending->second.first_ns : last_.now_ns;
    pending_[path] = {entry, last_.number, last_.now_ns, first_look, first_ns, false};
  }
}

bool WriteBack::finished(const std::string& path, const Change& change,
                         const std::function<bool(const std::string&)>& is_whole) const {
  if (is_open(path)) return false;
  if (change.entry.kind != Kind::kFile || ended_well_) return true;
  // The process that closed it lives on, so it was not closed by a death.
  if (!failed_ && (gone_look_ < change.look || last_.now_ns - change.since_ns >= kUnsureNs)) return true;
  return is_whole(path);
}

void WriteBack::copied(const std::string& path, const Entry& entry) {
  if (entry.kind != Kind::kFolder) {
    for (auto at = durable_.upper_bound(path + "/"); at != durable_.end() && is_beneath(at->first, path);) {
      removed_.erase(at->first);
      at = durable_.erase(at);
    }
  }
  if (entry.kind == Kind::kFile && durable_.count(path) != 0) rewritten_.insert(path);
  durable_[path] = entry;
  removed_.erase(path);
  const auto pending = pending_.find(path);
  if (pending == pending_.end()) return;
  if (unchanged(pending->second.entry, entry)) {
    pending_.erase(pending);
  } else {
    pending->second.first_look = pending->second.look;
    pending->second.first_ns = pending->second.since_ns;
  }
}

void WriteBack::gone(const std::string& path) {
  durable_.erase(path);
  removed_.erase(path);
  for (auto at = durable_.upper_bound(path + "/"); at != durable_.end() && is_beneath(at->first, path);) {
    removed_.erase(at->first);
    at = durable_.erase(at);
  }
}

std::vector<std::string> WriteBack::replaceable(int64_t most) const {
  int64_t used = used_bytes();
  std::vector<std::pair<int64_t, std::string>> oldest;
  for (const auto& [path, entry] : last_.tree) {
    const auto durable = durable_.find(path);
    const bool copied = durable != durable_.end() && unchanged(durable->second, entry);
    if (copied && entry.kind == Kind::kFile && entry.stored > 0 && rewritten_.count(path) == 0 &&
        last_.writing.count(path) == 0) {
      oldest.emplace_back(entry.modified_ns, path);
    }
  }
  std::sort(oldest.begin(), oldest.end());
  std::vector<std::string> found;
  for (const auto& [modified, path] : oldest) {
    if (used <= most) break;
    used -= last_.tree.at(path).stored;
    found.push_back(path);
  }
  return found;
}

Backlog WriteBack::backlog() const {
  Backlog backlog;
  backlog.files = static_cast<int64_t>(pending_.size() + removed_.size());
  for (const auto& [path, pending] : pending_) {
    if (pending.entry.kind == Kind::kFile) backlog.bytes += pending.entry.bytes;
  }
  return backlog;
}

int64_t WriteBack::used_bytes() const {
  int64_t used = 0;
  for (const auto& [path, entry] : last_.tree) used += entry.kind == Kind::kFile ? entry.stored : 0;
  return used;
}

int64_t WriteBack::links() const {
  return std::count_if(last_.tree.begin(), last_.tree.end(),
                       [&](const auto& each) { return is_link_of_ours(each.first, each.second); });
}

std::pair<std::string, int64_t> WriteBack::newest() const {
  std::pair<std::string, int64_t> newest;
  for (const auto& [path, entry] : durable_) {
    if (entry.kind == Kind::kFile && entry.modified_ns > newest.second) newest = {path, entry.modified_ns};
  }
  return newest;
}

}  // namespace falcon
