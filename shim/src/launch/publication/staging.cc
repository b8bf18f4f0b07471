#include "publication/staging.h"

#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "common/percent.h"

namespace falcon {
namespace {

std::string beneath(const std::string& path, const std::string& unit) {
  return path == unit ? "" : path.substr(unit.size() + 1);
}

const char* word_of(const StagedChange& change) {
  if (change.gone) return "gone";
  return change.kind == Kind::kFolder ? "folder" : change.kind == Kind::kLink ? "link" : "file";
}

}  // namespace

std::string staged_text(const StagedChanges& changes) {
  std::string text;
  for (const auto& [path, change] : changes) {
    text += std::string(word_of(change)) + " " + std::to_string(change.modified_ns) + " " +
            std::to_string(change.mode) + " " + percent_encoded(path) + "\n";
  }
  return text;
}

StagedChanges parse_staged(const std::string& text) {
  StagedChanges changes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() < 3) continue;
    StagedChange change;
    change.gone = words[0] == "gone";
    change.kind = words[0] == "folder" ? Kind::kFolder : words[0] == "link" ? Kind::kLink : Kind::kFile;
    change.modified_ns = strtoll(words[1].c_str(), nullptr, 10);
    change.mode = static_cast<mode_t>(strtoul(words[2].c_str(), nullptr, 10));
    changes[words.size() > 3 ? words[3] : ""] = change;
  }
  return changes;
}

std::string part_name(int replica, int64_t version) {
  return "r" + std::to_string(replica) + "." + std::to_string(version);
}

Staging::Staging(const FolderRoot& memory, const FolderRoot& durable, SharedFolder shared)
    : durable_(durable), shared_(shared), mover_(memory, durable, shared.part(), Synced::kContent) {}

std::string Staging::folder(const std::string& unit, int64_t version) const {
  return shared_.stages() + "/" + digest_of(unit) + "/" + part_name(shared_.replica(), version);
}

std::string Staging::place(const std::string& unit, const std::string& path) const {
  const std::string tree = folder(unit, 0) + "/tree";
  return path == unit ? tree : joined(tree, beneath(path, unit));
}

void Staging::remove_leftovers() {
  const std::string mine = "r" + std::to_string(shared_.replica()) + ".";
  durable_.remove(shared_.part());
  for (const std::string& unit : durable_.names(shared_.stages()).value_or(std::vector<std::string>())) {
    const std::string stage = joined(shared_.stages(), unit);
    for (const std::string& part : durable_.names(stage).value_or(std::vector<std::string>())) {
      if (part.compare(0, mine.size(), mine) == 0) durable_.remove(joined(stage, part));
    }
    durable_.remove_empty(stage);
  }
}

bool Staging::thaw(const std::string& unit) {
  const auto found = parts_.find(unit);
  if (found == parts_.end() || found->second.version == 0) return true;
  if (!durable_.rename(folder(unit, found->second.version), folder(unit, 0))) return false;
  found->second.version = 0;
  return true;
}

Outcome Staging::copy(const std::string& unit, const std::string& path, const Entry& entry, int64_t look,
                      const Progress& progress) {
  if (!thaw(unit)) return errno == ENOENT ? Outcome{Moved::kStopped, ""} : failed(durable_, folder(unit, 0));
  const std::string to = place(unit, path);
  if (!durable_.make_parents(to, 0777, false)) return failed(durable_, to);
  Part& part = parts_[unit];
  part.last_look = look;
  part.entries.erase(path);
  Outcome outcome = mover_.put(path, entry, to, progress);
  if (outcome.how == Moved::kDone) part.entries[path] = entry;
  return outcome;
}

Outcome Staging::remove(const std::string& unit, const std::string& path) {
  if (!thaw(unit)) return errno == ENOENT ? Outcome{Moved::kStopped, ""} : failed(durable_, folder(unit, 0));
  if (!durable_.remove(place(unit, path))) return failed(durable_, place(unit, path));
  parts_[unit].entries.erase(path);
  return {};
}

Outcome Staging::sync(const std::string& unit, const Part& part) const {
  std::set<std::string> folders{folder(unit, 0), folder_of(folder(unit, 0))};
  const std::string top = folder(unit, 0);
  for (const auto& [path, entry] : part.entries) {
    const std::string at = place(unit, path);
    if (entry.kind == Kind::kFolder) folders.insert(at);
    for (std::string each = folder_of(at); each.size() > top.size(); each = folder_of(each)) folders.insert(each);
  }
  for (const std::string& each : folders) {
    if (!durable_.sync_folder(each)) return failed(durable_, each);
  }
  return {};
}

Outcome Staging::freeze(const std::string& unit, const std::vector<std::string>& gone, int64_t version) {
  Part& part = parts_[unit];
  StagedChanges changes;
  for (const auto& [path, entry] : part.entries) {
    changes[beneath(path, unit)] = {false, entry.kind, entry.modified_ns, entry.mode};
  }
  part.gone = {gone.begin(), gone.end()};
  for (const std::string& path : gone) changes[beneath(path, unit)].gone = true;
  const std::string work = folder(unit, 0);
  if (!durable_.make_parents(work + "/tree", 0777, false)) return failed(durable_, work);
  if (!durable_.write(work + "/changes", staged_text(changes), true)) return failed(durable_, work + "/changes");
  Outcome outcome = sync(unit, part);
  if (outcome.how != Moved::kDone) return outcome;
  if (!durable_.rename(work, folder(unit, version)) || !durable_.sync_folder_of(work)) return failed(durable_, work);
  part.version = version;
  return {};
}

bool Staging::is_present(const std::string& unit) const {
  const auto found = parts_.find(unit);
  return found != parts_.end() && durable_.entry(folder(unit, found->second.version)).has_value();
}

void Staging::drop(const std::string& unit) {
  if (thaw(unit)) durable_.remove(folder(unit, 0));
  durable_.remove_empty(folder_of(folder(unit, 0)));  // unless another replica has a part
  parts_.erase(unit);
}

}  // namespace falcon
