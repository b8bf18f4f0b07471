// write_back_test: what is finished, what appears at once, and in which order; without files.
#include "units/write_back.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "folder/fill_steps.h"
#include "units/checkpoint_units.h"
#include "units/run_folders.h"

namespace {

using falcon::Entry;
using falcon::Kind;
using falcon::Look;
using falcon::Tree;
using falcon::WriteBack;

int failures = 0;

void expect(bool holds, const char* what, int line) {
  if (holds || failures >= 20) return;
  ++failures;
  fprintf(stderr, "write_back_test.cc:%d: %s\n", line, what);
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)

constexpr char kDurable[] = "/durable";
constexpr int64_t kLarge = 2 << 20;

Entry file(int64_t at, int64_t bytes = 10) {
  Entry entry;
  entry.bytes = entry.stored = bytes;
  entry.modified_ns = entry.changed_ns = at;
  entry.inode = static_cast<uint64_t>(at);
  return entry;
}

Entry folder_entry() {
  Entry entry;
  entry.kind = Kind::kFolder;
  return entry;
}

Entry link_to(const std::string& target) {
  Entry entry;
  entry.kind = Kind::kLink;
  entry.target = target;
  return entry;
}

// A script's folder, a second a look.
class Folder {
 public:
  explicit Folder(Tree durable = {}) : tree(durable), back(std::move(durable), kDurable) {}

  void look(bool somebody_gone = false) {
    Look look;
    look.number = ++number_;
    look.now_ns = number_ * falcon::kSecondNs;
    look.tree = tree;
    look.moving = moving;
    look.writing = writing;
    look.unread = unread;
    look.somebody_gone = somebody_gone;
    back.look(std::move(look), [this](const std::string& path) { return whole.count(path) != 0; });
  }

  void looks(int count) {
    for (int each = 0; each < count; ++each) {
      look();
      runs.look(back, groups());
    }
  }

  falcon::Groups groups() const { return falcon::group(back, runs.all()); }

  std::vector<std::string> finished() const {
    std::vector<std::string> paths;
    for (const auto& [path, change] : back.pending()) {
      if (change.finished) paths.push_back(path);
    }
    return paths;
  }

  std::vector<std::string> units() const {
    std::vector<std::string> paths;
    for (const auto& [path, unit] : groups().units) paths.push_back(path);
    return paths;
  }

  void copy_all() {
    const auto pending = back.pending();
    for (const auto& [path, change] : pending) back.copied(path, change.entry);
  }

  Tree tree;
  std::set<std::string> moving;
  std::set<std::string> writing;
  std::set<std::string> whole;
  std::map<std::string, std::string> unread;
  WriteBack back;
  falcon::RunFolders runs;

 private:
  int64_t number_ = 0;
};

using Paths = std::vector<std::string>;

void finished_files() {
  Folder folder;
  folder.tree = {{"log", file(5)}, {"step-1", file(10)}, {"step-2", file(20)}};
  folder.writing = {"log"};
  folder.moving = {"step-2"};
  folder.look();
  EXPECT(folder.finished() == Paths({"step-1"}));
  folder.writing = folder.moving = {};
  folder.look();
  EXPECT(folder.finished() == Paths({"log", "step-1", "step-2"}));
  folder.copy_all();
  EXPECT(folder.back.backlog().files == 0 && folder.back.newest().first == "step-2");
}

void deaths() {
  Folder folder;
  folder.tree = {{"plain", file(10)}};
  folder.look(true);  // a process has ended: was it the one that wrote?
  EXPECT(folder.finished().empty() && folder.back.backlog().files == 1);
  for (int second = 0; second < 10; ++second) folder.look();
  EXPECT(folder.finished() == Paths({"plain"}));  // no rank: one would have been missed long since

  Folder cut;
  cut.tree = {{"a-archive", file(10)}, {"b-plain", file(20)}};
  cut.whole = {"a-archive"};
  cut.look(true);
  cut.back.fail();
  for (int second = 0; second < 60; ++second) cut.look();
  EXPECT(cut.finished() == Paths({"a-archive"}));

  Folder well;
  well.tree = {{"plain", file(10)}};
  well.look(true);
  well.back.end_well();
  well.look();
  EXPECT(well.finished() == Paths({"plain"}));

  Folder before;
  before.look(true);  // a process that ended before the change has not made it
  before.tree = {{"plain", file(10)}};
  before.look();
  EXPECT(before.finished() == Paths({"plain"}));
}

void absences() {
  Folder folder({{"latest", folder_entry()}, {"latest/x", file(1)}, {"priv", folder_entry()}, {"priv/y", file(2)}});
  folder.tree.erase("latest/x");
  folder.tree["latest"] = link_to("step-2");
  folder.tree.erase("priv/y");
  folder.unread = {{"priv", "Permission denied"}};
  folder.look();
  EXPECT(folder.back.removed().empty());  // one goes with its folder, the other was not seen
  EXPECT(folder.groups().singles == Paths({"latest"}) && folder.units().empty());
  folder.back.copied("latest", folder.tree["latest"]);
  EXPECT(folder.back.durable().count("latest/x") == 0 && folder.back.durable().count("priv/y") == 1);
  folder.unread = {};
  folder.look();
  EXPECT(folder.units() == Paths({"priv"}) && folder.groups().units.at("priv").removed == Paths({"priv/y"}));
  folder.tree.erase("priv");
  folder.look();
  EXPECT(folder.units().empty() && folder.groups().removals.count("priv") == 1);
  EXPECT(folder.groups().removals.size() == 1);
  folder.back.gone("priv");
  EXPECT(folder.back.backlog().files == 0);
}

void changes_while_copying() {
  Folder folder;
  folder.tree = {{"last", file(10)}};
  folder.look();
  const Entry copied = folder.tree["last"];
  folder.tree["last"] = file(20);
  folder.look();
  folder.back.copied("last", copied);
  EXPECT(folder.back.backlog().files == 1);
  EXPECT(folder.back.pending().at("last").first_look == 2);
  folder.copy_all();
  EXPECT(folder.back.backlog().files == 0);
}

void units() {
  Folder folder;
  folder.tree = {{"run", folder_entry()},
                 {"run/log", file(1)},
                 {"run/step-1", folder_entry()},
                 {"run/step-1/model", file(3)},
                 {"run/step-1/part", folder_entry()},
                 {"run/step-1/part/0", file(4)},
                 {"latest", file(9)}};
  folder.look();
  EXPECT(folder.units() == Paths({"run"}) && folder.groups().singles == Paths({"latest"}));
  EXPECT(folder.groups().units.at("run").changed.size() == 6);
  folder.runs.add("run");
  EXPECT(folder.units() == Paths({"run/step-1"}));
  EXPECT(folder.groups().singles == Paths({"latest", "run", "run/log"}));
  folder.copy_all();
  folder.tree["run/step-1/model"] = file(10);
  folder.tree.erase("run/step-1/part/0");
  folder.tree.erase("run/step-1/part");
  folder.writing = {"run/step-1/model"};
  folder.look();
  const falcon::Unit changed = folder.groups().units.at("run/step-1");
  EXPECT(changed.open && changed.rewrites && changed.removed == Paths({"run/step-1/part"}));
  folder.tree.erase("run/step-1/model");
  folder.tree.erase("run/step-1");
  folder.writing = {};
  folder.look();
  EXPECT(folder.units().empty() && folder.groups().removals.count("run/step-1") == 1);
}

void kinds() {
  EXPECT(falcon::masked("run-12/checkpoint-3/rank_07.pt") == "run-#/checkpoint-#/rank_#.pt");
  falcon::CheckpointKinds kinds;
  const Tree first{{"step-1", folder_entry()}, {"step-1/rank_0", file(1)}, {"step-1/rank_1", file(2)}};
  const falcon::Unit unit;
  const Tree empty{{"step-1", folder_entry()}, {"step-1/part", folder_entry()}};
  EXPECT(kinds.quiet_ns("step-1", unit, empty) == 10 * falcon::kSecondNs);
  kinds.learn("step-1", empty);
  EXPECT(!kinds.knows("step-1"));
  EXPECT(kinds.quiet_ns("step-1", unit, first) == 2 * falcon::kSecondNs);
  kinds.learn("step-1", first);
  falcon::CheckpointKinds again;
  again.read(kinds.text());
  EXPECT(again.knows("step-2") && !again.knows("final") && again.names() == kinds.names());
  Tree second{{"step-20", folder_entry()}, {"step-20/rank_0", file(1)}};
  EXPECT(again.quiet_ns("step-20", unit, second) == 10 * falcon::kSecondNs);
  second["step-20/rank_1"] = file(3);
  EXPECT(again.quiet_ns("step-20", unit, second) == 0);
}

// A log that is open before the checkpoint began, and still long after.
void logs() {
  Folder folder;
  folder.tree = {{"run", folder_entry()}, {"run/log", file(1)}};
  folder.writing = {"run/log"};
  folder.looks(20);
  EXPECT(folder.runs.all().empty());
  folder.tree["run/step-1"] = folder_entry();
  folder.tree["run/step-1/model"] = file(10);
  folder.looks(9);
  EXPECT(folder.runs.all().empty());
  folder.looks(3);
  EXPECT(folder.runs.all().count("run") == 1 && folder.units() == Paths({"run/step-1"}));

  Folder late;  // the folder's own file began after its subfolder: both are of one checkpoint
  late.tree = {{"step-1", folder_entry()}, {"step-1/part", folder_entry()}, {"step-1/part/0", file(1)}};
  late.looks(2);
  late.tree["step-1/config"] = file(5);
  late.writing = {"step-1/config"};
  late.looks(60);
  EXPECT(late.runs.all().empty() && late.units() == Paths({"step-1"}));

  Folder growing;  // a large file that takes long is no log
  growing.tree = {{"step-1", folder_entry()}, {"step-1/model", file(1)}};
  growing.writing = {"step-1/model"};
  growing.looks(1);
  growing.tree["step-1/config"] = file(2);
  for (int second = 2; second < 60; ++second) {
    growing.tree["step-1/model"] = file(second, second * kLarge);
    growing.looks(1);
  }
  EXPECT(growing.runs.all().empty());
}

void second_checkpoints() {
  Folder folder;
  folder.tree = {{"run", folder_entry()}, {"run/step-1", folder_entry()}, {"run/step-1/model", file(1)}};
  folder.looks(1);
  folder.copy_all();
  folder.runs.published("run", 2 * falcon::kSecondNs);
  folder.tree["run/step-2"] = folder_entry();
  Folder late = folder;
  folder.looks(1);
  EXPECT(folder.runs.all().empty());  // so soon it may be a part
  late.looks(0);
  late.tree.erase("run/step-2");
  late.looks(40);
  late.tree["run/step-2"] = folder_entry();
  late.looks(1);
  EXPECT(late.runs.all().count("run") == 1 && late.units() == Paths({"run/step-2"}));
}

void room() {
  Folder folder({{"a", file(10, 100)}, {"b", file(20, 100)}, {"c", file(30, 100)}});
  folder.tree["d"] = file(40, 100);  // not durable yet
  folder.look();
  EXPECT(folder.back.used_bytes() == 400);
  EXPECT(folder.back.replaceable(400).empty());
  EXPECT(folder.back.replaceable(250) == Paths({"a", "b"}));
  EXPECT(folder.back.replaceable(0) == Paths({"a", "b", "c"}));
  folder.tree["a"] = link_to("/durable/a");
  folder.writing = {"b"};
  folder.look();
  EXPECT(folder.back.links() == 1 && folder.back.replaceable(0) == Paths({"c"}));
  EXPECT(folder.back.backlog().files == 1);  // a link of ours is no change
  folder.tree["c"] = file(50, 100);
  folder.writing = {};
  folder.look();
  folder.copy_all();
  EXPECT(folder.back.replaceable(0) == Paths({"b", "d"}));  // `c` is written again and again: it stays
}

void filling() {
  using What = falcon::FillStep::What;
  Tree durable{{"d", folder_entry()},
               {"d/1", file(10, 40)},
               {"d/2", file(20, 40)},
               {"d/3", file(30, 40)},
               {"now", link_to("d/3")}};
  const auto told = [](const std::vector<falcon::FillStep>& steps) {
    std::vector<std::pair<What, std::string>> out;
    out.reserve(steps.size());
    for (const auto& step : steps) out.emplace_back(step.what, step.path);
    return out;
  };
  const std::vector<std::pair<What, std::string>> all{{What::kFolder, "d"},
                                                      {What::kLink, "now"},
                                                      {What::kFetch, "d/3"},
                                                      {What::kFetch, "d/2"},
                                                      {What::kReplace, "d/1"}};
  EXPECT(told(falcon::plan_fill(durable, {}, kDurable, 100)) == all);
  Tree memory = durable;
  memory["d/1"] = link_to("/durable/d/1");
  EXPECT(falcon::plan_fill(durable, memory, kDurable, 100).empty());
  memory["d/3"] = file(31, 40);  // torn
  memory["d/4"] = file(40, 40);
  memory["now"] = link_to("d/4");
  const std::vector<std::pair<What, std::string>> back{
      {What::kRemove, "d/4"}, {What::kLink, "now"}, {What::kFetch, "d/3"}};
  EXPECT(told(falcon::plan_fill(durable, memory, kDurable, 100)) == back);
}

}  // namespace

int main() {
  finished_files();
  deaths();
  absences();
  changes_while_copying();
  units();
  kinds();
  logs();
  second_checkpoints();
  room();
  filling();
  if (failures == 0) printf("write_back_test: ok\n");
  return failures == 0 ? 0 : 1;
}
