#include "write_back.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "clock.h"

namespace falcon {
namespace {

// A file that was closed about when a process ended: if a rank was killed, we are told long before.
constexpr int64_t kUnsureNs = 10 * kSecondNs;

// By the time of the change. In the same tick of the clock the larger file goes first: one that names others is small.
auto order(const std::string& path, const Entry& entry) {
  return std::make_tuple(entry.changed_ns, -entry.bytes, path);
}

}  // namespace

bool WriteBack::is_link_of_ours(const std::string& path, const Entry& entry) const {
  return entry.kind == Kind::kLink && entry.target == folder_ + "/" + path;
}

void WriteBack::look(Look look, const std::function<bool(const std::string&)>& is_whole) {
  last_ = std::move(look);
  if (last_.somebody_gone) gone_look_ = last_.number;
  for (const auto& [path, entry] : last_.tree) note(path, entry);
  for (auto at = pending_.begin(); at != pending_.end();) {
    at = last_.tree.count(at->first) == 0 ? pending_.erase(at) : std::next(at);
  }
  for (const auto& [path, entry] : durable_) {
    if (last_.tree.count(path) == 0) removed_.emplace(path, last_.number);
  }
  for (auto& [path, pending] : pending_) {
    if (!pending.finished) pending.finished = finished(path, pending, is_whole);
  }
}

bool WriteBack::is_durable(const std::string& path, const Entry& entry) const {
  const auto durable = durable_.find(path);
  return is_link_of_ours(path, entry) || (durable != durable_.end() && unchanged(durable->second, entry));
}

bool WriteBack::is_durable(const Tree& tree) const {
  return std::all_of(tree.begin(), tree.end(), [&](const auto& each) { return is_durable(each.first, each.second); });
}

void WriteBack::note(const std::string& path, const Entry& entry) {
  removed_.erase(path);
  if (is_durable(path, entry)) {
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

bool WriteBack::finished(const std::string& path, const Pending& pending,
                         const std::function<bool(const std::string&)>& is_whole) const {
  if (last_.moving.count(path) != 0) return false;
  if (pending.entry.kind != Kind::kFile) return true;
  if (last_.writing.count(path) != 0) return false;
  if (ended_well_) return true;
  // Whoever closed it lives on, so it was not closed by a death.
  if (!failed_ && (gone_look_ < pending.look || last_.now_ns - pending.since_ns >= kUnsureNs)) return true;
  return is_whole(path);
}

bool WriteBack::is_open(const std::string& path, const Pending& pending) const {
  return pending.entry.kind == Kind::kFile && last_.writing.count(path) != 0;
}

// After everything that had changed by then. Nothing waits for a file that is open, since the script itself did not
// wait; but a durable one may be the name of what is to go, and just being written anew.
bool WriteBack::may_remove(int64_t noticed) const {
  return std::none_of(pending_.begin(), pending_.end(), [&](const auto& each) {
    const auto& [path, pending] = each;
    const bool renewed = durable_.count(path) != 0 && last_.now_ns - pending.first_ns < kUnsureNs;
    return pending.first_look <= noticed && (renewed || !is_open(path, pending));
  });
}

std::optional<Step> WriteBack::next() const {
  for (auto at = removed_.rbegin(); at != removed_.rend(); ++at) {  // what lies in a folder goes before it
    if (may_remove(at->second)) return Step{Step::What::kRemove, at->first, {}};
  }
  auto first = pending_.end();
  for (auto at = pending_.begin(); at != pending_.end(); ++at) {
    // A script names a file when it has closed it: nothing waits for one that is open.
    if (is_open(at->first, at->second)) continue;
    if (first == pending_.end() || order(at->first, at->second.entry) < order(first->first, first->second.entry)) {
      first = at;
    }
  }
  if (first == pending_.end() || !first->second.finished) return std::nullopt;
  return Step{Step::What::kCopy, first->first, first->second.entry};
}

void WriteBack::done(const Step& step) {
  if (step.what == Step::What::kRemove) {
    durable_.erase(step.path);
    removed_.erase(step.path);
    return;
  }
  if (step.entry.kind == Kind::kFile && durable_.count(step.path) != 0) rewritten_.insert(step.path);
  durable_[step.path] = step.entry;
  const auto pending = pending_.find(step.path);
  if (pending == pending_.end()) return;
  if (unchanged(pending->second.entry, step.entry)) {
    pending_.erase(pending);
  } else {
    pending->second.first_look = pending->second.look;
    pending->second.first_ns = pending->second.since_ns;
  }
}

std::vector<std::string> WriteBack::replaceable(int64_t most) const {
  int64_t used = used_bytes();
  std::vector<std::pair<int64_t, std::string>> oldest;
  for (const auto& [path, entry] : last_.tree) {
    const auto durable = durable_.find(path);
    const bool copied = durable != durable_.end() && unchanged(durable->second, entry);
    if (copied && entry.kind == Kind::kFile && entry.bytes > 0 && rewritten_.count(path) == 0 &&
        last_.writing.count(path) == 0) {
      oldest.emplace_back(entry.modified_ns, path);
    }
  }
  std::sort(oldest.begin(), oldest.end());
  std::vector<std::string> found;
  for (const auto& [modified, path] : oldest) {
    if (used <= most) break;
    used -= last_.tree.at(path).bytes;
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
  for (const auto& [path, entry] : last_.tree) used += entry.kind == Kind::kFile ? entry.bytes : 0;
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
