// folder_root_test: nothing beneath a root leads out of it, with openat2 and without.
#include "tree/folder_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tree/mover.h"

namespace {

int failures = 0;

void expect(bool holds, const char* what, int line) {
  if (holds || failures >= 20) return;
  ++failures;
  fprintf(stderr, "folder_root_test.cc:%d: %s\n", line, what);
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)

using falcon::FolderRoot;

std::string scratch() {
  char name[] = "/tmp/folder-root-XXXXXX";
  const char* made = mkdtemp(name);
  return made != nullptr ? made : "/nonexistent";
}

bool has_kind(const FolderRoot& root, const std::string& path, falcon::Kind kind) {
  const auto entry = root.entry(path);
  return entry && entry->kind == kind;
}

void links_lead_nowhere(bool walk) {
  const std::string base = scratch();
  const std::string inside = base + "/inside";
  mkdir(inside.c_str(), 0755);
  mkdir((base + "/outside").c_str(), 0755);
  falcon::RootLimits limits;
  limits.walk = walk;
  FolderRoot root(inside, limits);
  FolderRoot whole(base);
  EXPECT(root.open() && whole.open());
  EXPECT(whole.write("outside/file", "victim", false));
  EXPECT(root.make_link("../outside", "planted") && root.make_link("../outside/file", "file"));

  EXPECT(!root.open_file("planted/file", O_RDONLY).valid() && !root.open_file("file", O_RDONLY).valid());
  EXPECT(!root.open_file("../outside/file", O_RDONLY).valid());
  EXPECT(!root.entry("planted/file") && root.read("planted/file", 100).empty());
  EXPECT(has_kind(root, "planted", falcon::Kind::kLink));
  EXPECT(!root.make_folder("planted/made", 0755) && !root.make_link("x", "planted/made"));
  EXPECT(!root.rename("file", "planted/file") && !root.write("planted/file", "x", false));
  EXPECT(root.remove("planted/file"));  // there is nothing beneath a link
  EXPECT(!root.names("planted") && !root.each("planted", [](const auto&, const auto&) {}));

  EXPECT(root.make_parents("planted/a/b", 0755, true) && has_kind(root, "planted/a", falcon::Kind::kFolder));
  EXPECT(root.write("file", "own", true) && root.read("file", 100) == "own");
  EXPECT(root.make_link("../../outside", "planted/a/out") && root.remove("planted") && !root.entry("planted"));
  EXPECT(whole.read("outside/file", 100) == "victim");
  EXPECT(whole.names("outside").value_or(std::vector<std::string>()).size() == 1);
  EXPECT(whole.remove("inside") && whole.remove("outside") && rmdir(base.c_str()) == 0);
}

void odd_names(bool walk) {
  const std::string base = scratch();
  falcon::RootLimits limits;
  limits.walk = walk;
  FolderRoot root(base, limits);
  EXPECT(root.open());
  const std::string name = "with blank\nand line \"quoted\" \xff";
  EXPECT(root.write(name, "x", false) && root.read(name, 10) == "x");
  EXPECT(!root.write(std::string(300, 'n'), "x", false));
  EXPECT(mkfifo((base + "/fifo").c_str(), 0600) == 0 && root.read("fifo", 10).empty());
  EXPECT(root.make_folder("closed", 0700) && root.write("closed/file", "x", false) && root.set_mode("closed", 0));
  std::string error;
  const auto listing = falcon::read_tree(root, &error);
  EXPECT(listing && listing->unread.count("fifo") == 1 && listing->tree.count(name) == 1);
  EXPECT(listing && (geteuid() == 0 || listing->unread.count("closed") == 1));
  EXPECT(root.remove("closed") && root.remove("fifo") && root.remove(name));
  EXPECT(rmdir(base.c_str()) == 0);
}

void holes_stay_holes() {
  const std::string base = scratch();
  FolderRoot root(base);
  EXPECT(root.open());
  {
    const auto file = root.open_file("sparse", O_WRONLY | O_CREAT | O_EXCL, 0600);
    EXPECT(pwrite(file.number(), "x", 1, 64 << 20) == 1 && ftruncate(file.number(), 128 << 20) == 0);
  }
  const falcon::Mover mover(root, root, "part", falcon::Synced::kContent);
  const auto entry = root.entry("sparse");
  EXPECT(entry && mover.put("sparse", *entry, "copy", [](int64_t) { return true; }).how == falcon::Moved::kDone);
  const auto copy = root.entry("copy");
  EXPECT(copy && copy->bytes == 128 << 20 && copy->stored <= 1 << 20);
  char found = 0;
  const auto file = root.open_file("copy", O_RDONLY);
  EXPECT(pread(file.number(), &found, 1, 64 << 20) == 1 && found == 'x');
  EXPECT(root.remove("sparse") && root.remove("copy") && rmdir(base.c_str()) == 0);
}

}  // namespace

int main() {
  for (const bool walk : {false, true}) {
    links_lead_nowhere(walk);
    odd_names(walk);
  }
  holes_stay_holes();
  if (failures == 0) printf("folder_root_test: ok\n");
  return failures == 0 ? 0 : 1;
}
