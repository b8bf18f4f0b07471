#include "tree.h"

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "clock.h"

namespace falcon {
namespace {

int64_t in_ns(const timespec& time) { return static_cast<int64_t>(time.tv_sec) * kSecondNs + time.tv_nsec; }

bool fail(const std::string& path, std::string* error) {
  *error = path + ": " + strerror(errno);
  return false;
}

// Adds what lies in `root`/`below`. What vanishes meanwhile is left out.
bool add(const std::string& root, const std::string& below, Tree* tree, std::string* error) {
  const std::string folder = below.empty() ? root : root + "/" + below;
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return (errno == ENOENT && !below.empty()) || fail(folder, error);
  std::vector<std::string> folders;
  errno = 0;
  while (const dirent* found = readdir(entries)) {
    const std::string name = found->d_name;
    if (name == "." || name == ".." || (below.empty() && name == kOwnFolder)) continue;
    const std::string path = below.empty() ? name : joined(below, name);
    const std::optional<Entry> entry = read_entry(joined(root, path));
    if (!entry && errno != ENOENT && errno != 0) {
      closedir(entries);
      return fail(joined(root, path), error);
    }
    if (entry && entry->kind == Kind::kFolder) folders.push_back(path);
    if (entry) tree->emplace(path, *entry);
    errno = 0;
  }
  const int reading = errno;
  closedir(entries);
  errno = reading;
  if (reading != 0) return fail(folder, error);
  for (const std::string& path : folders) {
    if (!add(root, path, tree, error)) return false;
  }
  return true;
}

}  // namespace

std::optional<Entry> read_entry(const std::string& path) {
  struct stat about{};
  if (lstat(path.c_str(), &about) != 0) return std::nullopt;
  Entry entry;
  entry.bytes = about.st_size;
  entry.modified_ns = in_ns(about.st_mtim);
  entry.changed_ns = in_ns(about.st_ctim);
  entry.inode = about.st_ino;
  entry.mode = about.st_mode & 07777;
  errno = 0;
  if (S_ISREG(about.st_mode)) return entry;
  entry.kind = Kind::kFolder;
  if (S_ISDIR(about.st_mode)) return entry;
  entry.kind = Kind::kLink;
  if (!S_ISLNK(about.st_mode)) return std::nullopt;
  char target[PATH_MAX];
  const ssize_t length = readlink(path.c_str(), target, sizeof(target));
  if (length < 0) return std::nullopt;
  entry.target.assign(target, static_cast<size_t>(length));
  return entry;
}

std::optional<Tree> read_tree(const std::string& root, std::string* error) {
  Tree tree;
  return add(root, "", &tree, error) ? std::optional<Tree>(std::move(tree)) : std::nullopt;
}

bool unchanged(const Entry& before, const Entry& now) {
  if (before.kind != now.kind || before.mode != now.mode) return false;
  if (now.kind == Kind::kFolder) return true;
  return before.inode == now.inode && before.bytes == now.bytes && before.modified_ns == now.modified_ns &&
         before.target == now.target;
}

bool is_copy(const Entry& original, const Entry& copy) {
  if (original.kind != copy.kind) return false;
  if (copy.kind == Kind::kFolder) return true;
  if (copy.kind == Kind::kLink) return original.target == copy.target;
  const int64_t unit = copy.modified_ns % kSecondNs == 0 ? kSecondNs : copy.modified_ns % 1000 == 0 ? 1000 : 1;
  return original.bytes == copy.bytes && original.modified_ns / unit == copy.modified_ns / unit;
}

}  // namespace falcon
