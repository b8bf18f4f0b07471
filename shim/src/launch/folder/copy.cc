#include "folder/copy.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "common/clock.h"
#include "common/percent.h"
#include "folder/eviction.h"
#include "folder/fill.h"
#include "publication/recovery.h"

namespace falcon {
namespace {

constexpr int64_t kStaleNs = kSecondNs / 10;  // while there is work, a look is no older
constexpr int64_t kLifeNs = kSecondNs;        // between two statements
constexpr size_t kMostText = 1 << 26;
constexpr size_t kMostHistories = 4096;
constexpr size_t kMostNamed = 5;

// The number in a name of a replica's file, or −1.
int replica_in(const std::string& name, const std::string& start) {
  if (name.size() <= start.size() || name.compare(0, start.size(), start) != 0) return -1;
  char* end = nullptr;
  const long number = strtol(name.c_str() + start.size(), &end, 10);
  return *end == '\0' ? static_cast<int>(number) : -1;
}

}  // namespace

FolderCopy::FolderCopy(const CopyOptions& options, Surroundings surroundings)
    : options_(options),
      surroundings_(std::move(surroundings)),
      memory_(options.memory, options.memory_limits),
      durable_(options.folder, options.folder_limits),
      shared_(options.generation, options.replica),
      claim_(durable_, options.owner, options.generation, options.replica),
      agreement_(options.replica, options.replicas),
      publication_(durable_, shared_, [this] { return still_ours(); }),
      staging_(memory_, durable_, shared_),
      back_({}, options.folder),
      singles_(memory_, durable_, shared_, &publication_, &back_, &errors_) {}

bool FolderCopy::open_roots() {
  for (FolderRoot* root : {&memory_, &durable_}) {
    if (root->open()) continue;
    errors_.note("", root->path() + ": " + strerror(errno));
    return false;
  }
  errors_.clear("");
  return true;
}

std::string FolderCopy::begin(bool resume) {
  for (size_t slash = options_.folder.find('/', 1); slash != std::string::npos;
       slash = options_.folder.find('/', slash + 1)) {
    mkdir(options_.folder.substr(0, slash).c_str(), 0777);
  }
  if (mkdir(options_.folder.c_str(), 0777) != 0 && errno != EEXIST) return options_.folder + ": " + strerror(errno);
  if (!open_roots()) return errors_.text();
  Recovery recovery(durable_, shared_, &publication_, surroundings_.pause);
  std::string error = claim_.take();
  if (error.empty()) error = recovery.make_folders();
  if (!error.empty()) return error;
  read_history();
  staging_.remove_leftovers();
  state();  // those who begin with this one wait for it
  if (!resume) {
    error = recovery.roll_forward();
    if (!error.empty()) errors_.note("", error);
    FolderFill fill(durable_, memory_, surroundings_.goes_on, surroundings_.in_time);
    error = fill.fill(options_.memory_bytes / 2);
    for (const auto& [path, text] : fill.unread()) errors_.note(durable_.full(path), durable_.full(path) + ": " + text);
  }
  if (resume) publication_.finish_claims();
  std::optional<Listing> same = error.empty() ? read_tree(memory_, &error) : std::nullopt;
  std::optional<Listing> durable = same && resume ? read_tree(durable_, &error) : std::nullopt;
  if (!same || (resume && !durable)) return error;
  if (durable) keep_durable(durable->tree, &same->tree);
  back_ = WriteBack(std::move(same->tree), options_.folder);
  return "";
}

// What an earlier process of this generation had made durable: whatever differs is taken for changed. What is gone from
// memory has been removed, unless another replica may have saved it.
void FolderCopy::keep_durable(const Tree& durable, Tree* memory) const {
  for (auto at = memory->begin(); at != memory->end();) {
    const auto copy = durable.find(at->first);
    const bool alike = copy != durable.end() && is_copy(at->second, copy->second);
    at = alike ? std::next(at) : memory->erase(at);
  }
  if (!agreement_.is_alone()) return;
  for (const auto& [path, entry] : durable) memory->emplace(path, entry);
}

void FolderCopy::read_history() {
  const auto names = durable_.names(SharedFolder::own()).value_or(std::vector<std::string>());
  size_t read = 0;
  for (const std::string& name : names) {
    const int replica = replica_in(name, "history.r");
    if (replica < 0 || ++read > kMostHistories) continue;
    const std::string text = durable_.read(SharedFolder::history(replica), kMostText);
    CheckpointKinds kinds;
    kinds.read(text);
    agreement_.remember(replica, kinds.names());
    if (replica == options_.replica) kinds_ = kinds;
    if (replica == options_.replica) history_ = text;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::vector<std::string> words = words_of(line);
      if (words.size() == 2 && words[0] == "run") runs_.add(words[1]);
    }
  }
  const std::optional<Statement> before =
      parse_statement(durable_.read(shared_.statement(options_.replica), kMostText));
  if (before) own_.sequence = before->sequence;
  hear();
  int64_t answered = 0;
  for (const auto& [replica, theirs] : agreement_.statements()) {
    const auto cleared = theirs.cleared.find(options_.replica);
    if (cleared == theirs.cleared.end()) continue;
    answered = std::max({answered, cleared->second.first, cleared->second.second});
  }
  singles_.continue_after(std::max(answered, before ? std::max(before->names, before->removals) : 0));
}

void FolderCopy::save_history() {
  std::string text = kinds_.text();
  for (const std::string& folder : runs_.all()) text += "run " + percent_encoded(folder) + "\n";
  if (text == history_) return;
  if (durable_.write(SharedFolder::history(options_.replica), text, true)) history_ = text;
}

void FolderCopy::hear() {
  if (options_.replicas == 1) return;
  std::map<int, Statement> statements;
  for (const std::string& name : durable_.names(shared_.base()).value_or(std::vector<std::string>())) {
    const int replica = replica_in(name, "r");
    if (replica < 0 || replica == options_.replica) continue;
    const std::optional<Statement> said = parse_statement(durable_.read(shared_.statement(replica), kMostText));
    if (said) statements[replica] = *said;
  }
  agreement_.hear(statements, surroundings_.now_ns());
  for (const auto& [replica, statement] : agreement_.statements()) {
    for (const std::string& folder : statement.run_folders) runs_.add(folder);
  }
}

bool FolderCopy::still_ours() {
  if (!lost_ && !claim_.holds()) {
    lost_ = true;
    errors_.note("", options_.folder + " is written by another job, or by a newer generation of this one");
  }
  return !lost_;
}

bool FolderCopy::is_stale() const { return surroundings_.now_ns() - look_ns_ >= std::max(kStaleNs, look_cost_ns_); }

// False where the folder could not be read.
bool FolderCopy::take_look() {
  const int64_t begun_ns = surroundings_.now_ns();
  std::string error;
  const std::optional<Listing> before = read_tree(memory_, &error);
  std::optional<Listing> seen = before ? read_tree(memory_, &error) : std::nullopt;
  if (!seen) {
    errors_.note("", error);
    return false;
  }
  Look look;
  look.number = ++looks_;
  look.tree = std::move(seen->tree);
  for (const auto& [path, entry] : look.tree) {
    const auto found = before->tree.find(path);
    if (found == before->tree.end() || !unchanged(found->second, entry)) look.moving.insert(path);
  }
  std::map<std::string, std::string> unread;
  for (const auto& [path, why] : seen->unread) {
    unread[memory_.full(path)] = memory_.full(path) + ": " + why + "; it is left out";
  }
  errors_.replace(unread, &unread_);
  look.unread = std::move(seen->unread);
  if (!back_.is_durable(look.tree)) look.writing = surroundings_.writing();  // it costs more than the rest
  look.somebody_gone = surroundings_.somebody_gone();
  look.now_ns = look_ns_ = surroundings_.now_ns();
  look_cost_ns_ = look_ns_ - begun_ns;
  back_.look(std::move(look), surroundings_.ends_as_whole);
  forget_errors();
  return true;
}

// Of names that are no longer there.
void FolderCopy::forget_errors() {
  std::vector<std::string> gone;
  for (const auto& [path, text] : errors_.all()) {
    const bool ours = !path.empty() && path[0] != '/';
    if (ours && back_.last().tree.count(path) == 0 && back_.removed().count(path) == 0) gone.push_back(path);
  }
  for (const std::string& path : gone) errors_.clear(path);
}

Round FolderCopy::round() {
  Round round;
  if (!open_roots()) {
    round.failing = true;
    return round;
  }
  hear();
  round.looked = take_look();
  if (!round.looked || !still_ours()) return round;
  const Outcome claimed = publication_.finish_claims();
  if (claimed.how == Moved::kFailed) {
    errors_.note("", claimed.error);
    round.failing = true;
  }
  settle_taken(&round);
  if (cut_ns_ == 0) runs_.look(back_, group(back_, runs_.all()));
  groups_ = group(back_, runs_.all());
  stage(&round);
  freeze(&round);
  singles_.put_data(groups_, surroundings_.progress, [this] { return is_stale(); }, &round);
  groups_ = group(back_, runs_.all());
  state();
  publish_units(&round);
  groups_ = group(back_, runs_.all());
  singles_.put_names(groups_, agreement_, own_look(), surroundings_.progress, &round);
  groups_ = group(back_, runs_.all());
  singles_.remove(groups_, agreement_, own_look(), &round);
  groups_ = group(back_, runs_.all());
  state();
  save_history();
  return round;
}

OwnLook FolderCopy::own_look() const {
  OwnLook look;
  look.number = back_.last().number;
  look.now_ns = back_.last().now_ns;
  look.ended_ns = ended_ns_;
  look.well = well_;
  look.oldest_data_look = singles_.oldest_data_look(groups_);
  look.oldest_look = singles_.oldest_look(groups_);
  look.overlaps = [this](const std::string& unit) {
    return std::any_of(groups_.units.begin(), groups_.units.end(), [&](const auto& each) {
      if (each.second.changed.empty()) return false;  // removals wait for others, and nothing waits for them
      return each.first == unit || is_beneath(each.first, unit) || is_beneath(unit, each.first);
    });
  };
  return look;
}

void FolderCopy::state() {
  own_.state = ended_ns_ != 0 ? Following::kFlushing : Following::kFollowing;
  own_.well = well_;
  own_.units.clear();
  for (const auto& [unit, changes] : groups_.units) {
    if (!changes.changed.empty()) own_.units[unit] = 0;
  }
  for (const auto& [unit, part] : staging_.parts()) {
    if (part.version != 0) own_.units[unit] = part.version;
  }
  own_.run_folders = runs_.all();
  own_.kinds = kinds_.names();
  singles_.announce(groups_, &own_);
  agreement_.answer(own_look(), &own_);
  if (options_.replicas == 1) return;
  Statement same = own_;
  same.sequence = 0;
  const std::string text = same.text();
  if (text != stated_ || surroundings_.now_ns() - stated_ns_ >= kLifeNs) show_life();
  stated_ = text;
}

void FolderCopy::show_life() {
  if (options_.replicas == 1 || lost_) return;
  ++own_.sequence;
  stated_ns_ = surroundings_.now_ns();
  const std::string path = shared_.statement(options_.replica);
  if (durable_.write(path, own_.text(), false)) {
    errors_.clear(durable_.full(path));
  } else {
    errors_.note(durable_.full(path), durable_.full(path) + ": " + strerror(errno));
  }
}

void FolderCopy::fail() {
  back_.fail();
  if (cut_ns_ == 0) cut_ns_ = surroundings_.now_ns();
}

void FolderCopy::end_well() {
  back_.end_well();
  well_ = true;
}

void FolderCopy::flush() {
  ended_ns_ = surroundings_.now_ns();
  if (!well_) fail();
}

void FolderCopy::leave() {
  own_.state = Following::kLeft;
  show_life();
}

std::string FolderCopy::unfinished() const {
  std::string names;
  size_t named = 0;
  for (const auto& [unit, changes] : groups_.units) {
    if (++named <= kMostNamed) names += (names.empty() ? "" : ", ") + unit;
  }
  return named > kMostNamed ? names + " and " + std::to_string(named - kMostNamed) + " more" : names;
}

void FolderCopy::make_room() {
  for (const std::string& path : back_.replaceable(options_.memory_bytes / 2)) {
    if (!surroundings_.goes_on()) return;
    replace_with_link(memory_, durable_, path, surroundings_.writing);
  }
}

}  // namespace falcon
