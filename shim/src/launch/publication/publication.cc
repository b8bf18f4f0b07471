#include "publication/publication.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>

#include "common/percent.h"

namespace falcon {
namespace {

constexpr size_t kMostText = 1 << 28;
constexpr int kMostNames = 1 << 20;

bool is_folder(const std::optional<Entry>& entry) { return entry && entry->kind == Kind::kFolder; }

std::string beneath_or_top(const std::string& top, const std::string& path) {
  return path.empty() ? top : joined(top, path);
}

// What all parts say together. The newer file of two is the one; a name that one part has is not gone.
struct Merged {
  StagedChanges changes;
  std::map<std::string, std::string> sources;  // path → the part that has it
};

void take(const std::string& part, const StagedChanges& changes, Merged* merged) {
  for (const auto& [path, change] : changes) {
    const auto [at, fresh] = merged->changes.try_emplace(path, change);
    const StagedChange& known = at->second;
    if (!fresh && (change.gone || (!known.gone && known.modified_ns >= change.modified_ns))) continue;
    at->second = change;
    if (!change.gone) merged->sources[path] = part;
  }
}

}  // namespace

Publication::Plan Publication::read_plan(const std::string& claim) const {
  Plan plan;
  for (const char* file : {"/plan", "/intent"}) {
    std::istringstream lines(durable_.read(claim + file, kMostText));
    for (std::string line; std::getline(lines, line);) {
      const std::vector<std::string> words = words_of(line);
      if (words.size() != 2) continue;
      if (words[0] == "unit") plan.unit = words[1];
      if (words[0] == "part") plan.parts.push_back(words[1]);
      if (words[0] == "inode") plan.inode = strtoull(words[1].c_str(), nullptr, 10);
    }
  }
  return plan;
}

bool Publication::is_wanted(const std::string& claim, const std::vector<std::string>& parts) const {
  const std::optional<std::vector<std::string>> found = durable_.names(claim);
  return found &&
         std::set<std::string>(found->begin(), found->end()) == std::set<std::string>(parts.begin(), parts.end());
}

void Publication::give_back(const std::string& claim, const std::string& stage) const {
  if (durable_.rename_new(claim, stage)) return;
  for (const std::string& name : durable_.names(claim).value_or(std::vector<std::string>())) {
    durable_.rename_new(joined(claim, name), joined(stage, name));
  }
  discard(claim);
}

Outcome Publication::publish(const std::string& unit, const std::map<int, int64_t>& versions) {
  const std::string stage = joined(shared_.stages(), digest_of(unit));
  const std::string claim = joined(shared_.claims(), digest_of(unit) + shared_.suffix());
  std::vector<std::string> parts;
  std::string plan = "unit " + percent_encoded(unit) + "\n";
  for (const auto& [replica, version] : versions) {
    parts.push_back(part_name(replica, version));
    plan += "part " + parts.back() + "\n";
  }
  if (!may_publish_()) return {Moved::kStopped, ""};
  if (!durable_.make_parents(claim, 0777, false)) return failed(durable_, claim);
  if (!durable_.rename_new(stage, claim)) {
    return errno == ENOENT || errno == EEXIST ? Outcome{Moved::kChanged, ""} : failed(durable_, claim);
  }
  if (!is_wanted(claim, parts)) {
    give_back(claim, stage);
    return {Moved::kChanged, ""};
  }
  if (!durable_.write(claim + "/plan", plan, true) || !durable_.sync_folder_of(claim)) {
    Outcome outcome = failed(durable_, claim + "/plan");
    durable_.remove(claim + "/plan.new");
    give_back(claim, stage);
    return outcome;
  }
  return finish(claim);
}

Outcome Publication::replace_folder(const std::string& path, const std::function<Outcome(const std::string&)>& put) {
  const std::string claim = joined(shared_.claims(), digest_of(path) + shared_.suffix());
  if (!may_publish_()) return {Moved::kStopped, ""};
  if (!durable_.make_parents(claim + "/new", 0777, false)) return failed(durable_, claim);
  Outcome outcome = put(claim + "/new");
  Plan plan;
  plan.unit = path;
  if (outcome.how == Moved::kDone) outcome = record(claim, &plan);
  if (outcome.how != Moved::kDone) {
    discard(claim);
    return outcome;
  }
  return finish(claim);
}

Outcome Publication::finish(const std::string& claim) {
  Plan plan = read_plan(claim);
  if (plan.unit.empty()) {
    discard(claim);
    return {};
  }
  Outcome outcome;
  if (plan.inode == 0) {
    outcome = assemble(claim, plan);
    if (outcome.how == Moved::kDone) outcome = record(claim, &plan);
  }
  if (outcome.how == Moved::kDone) outcome = place(claim, plan);
  if (outcome.how == Moved::kDone) discard(claim);
  return outcome;
}

Outcome Publication::finish_claims() {
  Outcome worst;
  for (const std::string& name : durable_.names(shared_.claims()).value_or(std::vector<std::string>())) {
    const std::string& mine = shared_.suffix();
    if (name.size() <= mine.size() || name.compare(name.size() - mine.size(), mine.size(), mine) != 0) continue;
    const Outcome outcome = finish(joined(shared_.claims(), name));
    if (outcome.how != Moved::kDone) worst = outcome;
  }
  return worst;
}

bool Publication::is_claimed(const std::string& unit) const {
  const std::string start = digest_of(unit) + "+";
  const auto names = durable_.names(shared_.claims()).value_or(std::vector<std::string>());
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.compare(0, start.size(), start) == 0; });
}

// May be cut off and begun again at any point: parts move to `new` one by one, and what is there already stays.
Outcome Publication::assemble(const std::string& claim, const Plan& plan) const {
  const std::string made = claim + "/new";
  const bool alone = plan.parts.size() == 1 && !is_folder(durable_.entry(plan.unit));
  if (!alone || durable_.entry(made)) {
    const Outcome outcome = merge(claim, plan);
    if (outcome.how != Moved::kDone) return outcome;
  } else if (!durable_.rename(joined(claim, plan.parts.front()) + "/tree", made)) {
    return failed(durable_, made);
  }
  return sync_folders(made);
}

Outcome Publication::merge(const std::string& claim, const Plan& plan) const {
  const std::string made = claim + "/new";
  Merged merged;
  for (const std::string& part : plan.parts) {
    take(part, parse_staged(durable_.read(joined(claim, part) + "/changes", kMostText)), &merged);
  }
  if (!durable_.make_folder(made, 0777)) return failed(durable_, made);
  if (is_folder(durable_.entry(plan.unit))) {
    const Outcome outcome = clone(plan.unit, made, merged.changes);
    if (outcome.how != Moved::kDone) return outcome;
  }
  for (const auto& [path, part] : merged.sources) {
    const std::string to = beneath_or_top(made, path);
    const StagedChange& change = merged.changes.at(path);
    if (!durable_.make_parents(to, 0777, false)) return failed(durable_, to);
    if (change.kind == Kind::kFolder) {
      if (!durable_.make_folder(to, 0777)) return failed(durable_, to);
      durable_.set_mode(to, change.mode | S_IRWXU);
      continue;
    }
    const std::string from = beneath_or_top(joined(claim, part) + "/tree", path);
    if (!durable_.rename(from, to) && (errno != ENOENT || !durable_.entry(to))) return failed(durable_, from);
  }
  return {};
}

Outcome Publication::clone(const std::string& from, const std::string& to, const StagedChanges& changes) const {
  Outcome worst;
  std::vector<std::string> left{""};
  while (!left.empty() && worst.how == Moved::kDone) {
    const std::string folder = left.back();
    left.pop_back();
    const auto visit = [&](const std::string& name, const std::optional<Entry>& entry) {
      const std::string path = folder.empty() ? name : joined(folder, name);
      const auto change = changes.find(path);
      const bool stays =
          change == changes.end() || (!change->second.gone && change->second.kind == Kind::kFolder && is_folder(entry));
      if (!entry || !stays || worst.how != Moved::kDone) return;
      worst = clone_entry(joined(from, path), joined(to, path), *entry);
      if (entry->kind == Kind::kFolder) left.push_back(path);
    };
    const std::string source = beneath_or_top(from, folder);
    if (!durable_.each(source, visit)) return failed(durable_, source);
  }
  const std::optional<Entry> top = durable_.entry(from);
  if (top) durable_.set_mode(to, top->mode | S_IRWXU);
  return worst;
}

Outcome Publication::clone_entry(const std::string& from, const std::string& to, const Entry& entry) const {
  if (entry.kind == Kind::kFolder) {
    if (!durable_.make_folder(to, 0777)) return failed(durable_, to);
    durable_.set_mode(to, entry.mode | S_IRWXU);
    return {};
  }
  if (durable_.hard_link(from, to) || errno == EEXIST) return {};
  if (entry.kind == Kind::kOther) return failed(durable_, from);
  const Mover mover(durable_, durable_, shared_.part() + ".copy", Synced::kContent);
  Outcome outcome = mover.put(from, entry, to, [](int64_t) { return true; });
  if (outcome.how == Moved::kUnreadable) outcome.how = Moved::kFailed;
  return outcome;
}

Outcome Publication::sync_folders(const std::string& folder) const {
  std::vector<std::string> left{folder};
  while (!left.empty()) {
    const std::string each = left.back();
    left.pop_back();
    if (!durable_.sync_folder(each)) return failed(durable_, each);
    durable_.each(each, [&](const std::string& name, const std::optional<Entry>& entry) {
      if (is_folder(entry)) left.push_back(joined(each, name));
    });
  }
  return {};
}

Outcome Publication::record(const std::string& claim, Plan* plan) const {
  const std::optional<Entry> made = durable_.entry(claim + "/new");
  if (!made || !durable_.sync_folder(claim)) return failed(durable_, claim + "/new");
  plan->inode = made->inode;
  const std::string text = "unit " + percent_encoded(plan->unit) + "\ninode " + std::to_string(plan->inode) + "\n";
  return durable_.write(claim + "/intent", text, true) ? Outcome{} : failed(durable_, claim + "/intent");
}

Outcome Publication::place(const std::string& claim, const Plan& plan) const {
  const std::string made = claim + "/new";
  if (!may_publish_()) return {Moved::kStopped, ""};
  const std::optional<Entry> wanted = durable_.entry(made);
  if (wanted && wanted->inode == plan.inode) {
    if (!durable_.make_parents(plan.unit, 0777, true) || !swap(claim, plan.unit)) return failed(durable_, plan.unit);
  }
  return durable_.sync_folder_of(plan.unit) ? Outcome{} : failed(durable_, plan.unit);
}

bool Publication::swap(const std::string& claim, const std::string& unit) const {
  const std::string made = claim + "/new";
  if (durable_.rename_new(made, unit)) return true;
  if (errno != EEXIST) return false;
  if (durable_.exchange(made, unit)) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) return false;
  // A file system without exchanges (NFS): the old one steps aside. A process that dies here has left the intent.
  for (int number = 0; number < kMostNames; ++number) {
    const std::string aside = claim + "/old" + std::to_string(number);
    if (durable_.entry(aside)) continue;
    return durable_.rename(unit, aside) && durable_.sync_folder(claim) && durable_.rename_new(made, unit);
  }
  return false;
}

Outcome Publication::remove(const std::string& path) {
  if (!may_publish_()) return {Moved::kStopped, ""};
  if (!durable_.entry(path)) {
    return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? Outcome{} : failed(durable_, path);
  }
  discard(path);
  if (durable_.entry(path)) return failed(durable_, path);
  return durable_.sync_folder_of(path) ? Outcome{} : failed(durable_, path);
}

// It vanishes whole: by a rename, and only then piece by piece.
void Publication::discard(const std::string& path) const {
  durable_.make_folder(SharedFolder::trash(), 0777);
  for (int number = 0; number < kMostNames; ++number) {
    const std::string to =
        SharedFolder::trash() + "/" + digest_of(path) + shared_.suffix() + "." + std::to_string(number);
    if (durable_.rename_new(path, to)) {
      durable_.sync_folder_of(path);
      durable_.remove(to);
      return;
    }
    if (errno != EEXIST) return;
  }
}

void Publication::empty_trash() const {
  for (const std::string& name : durable_.names(SharedFolder::trash()).value_or(std::vector<std::string>())) {
    durable_.remove(joined(SharedFolder::trash(), name));
  }
}

}  // namespace falcon
