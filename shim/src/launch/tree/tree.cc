#include "tree/tree.h"

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "tree/folder_root.h"

namespace falcon {
namespace {

// Adds what lies in a folder, and returns the folders among it. What vanishes meanwhile is left out.
std::vector<std::string> add(const FolderRoot& root, const std::string& folder, Listing* listing) {
  std::vector<std::string> folders;
  const bool read = root.each(folder, [&](const std::string& name, const std::optional<Entry>& entry) {
    if (folder.empty() && name == kOwnFolder) return;
    std::string path = folder.empty() ? name : joined(folder, name);
    if (!entry) {
      if (errno != ENOENT) listing->unread[path] = strerror(errno);
    } else if (entry->kind == Kind::kOther) {
      listing->unread[path] = "it is no file, folder or symbolic link";
    } else {
      if (entry->kind == Kind::kFolder) folders.push_back(path);
      listing->tree.emplace(std::move(path), *entry);
    }
  });
  if (!read && (errno != ENOENT || folder.empty())) listing->unread[folder] = strerror(errno);
  return folders;
}

}  // namespace

std::optional<Listing> read_tree(const FolderRoot& root, std::string* error) {
  Listing listing;
  std::vector<std::string> left{""};
  while (!left.empty()) {
    const std::string folder = std::move(left.back());
    left.pop_back();
    for (std::string& inner : add(root, folder, &listing)) left.push_back(std::move(inner));
  }
  const auto unread = listing.unread.find("");
  if (unread == listing.unread.end()) return listing;
  *error = root.path() + ": " + unread->second;
  return std::nullopt;
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
