// Reaches files below a folder, and nothing else: no link on the way is followed, whoever puts one there, and when.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tree/tree.h"

namespace falcon {

// Closes a file with its scope.
class OpenFile {
 public:
  explicit OpenFile(int number) : number_(number) {}
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  OpenFile& operator=(OpenFile&&) = delete;
  int number() const { return number_; }
  bool valid() const { return number_ >= 0; }

 private:
  int number_;
};

// What a kernel or a file system lacks. Tests take more away.
struct RootLimits {
  bool walk = false;                    // no openat2: each folder on the way is opened by itself
  bool exchange = true;                 // RENAME_EXCHANGE works
  bool hard_links = true;               // link(2) works
  std::function<void()> before_change;  // called before each change of the folder; it may throw
};

// All paths are relative to the root, without `.` and `..`; the empty path is the root. False, -1 or nothing: errno
// says why.
class FolderRoot {
 public:
  explicit FolderRoot(std::string path, RootLimits limits = {}) : path_(std::move(path)), limits_(std::move(limits)) {}

  // Opens the root itself, whose own path may lead through links. Again where it has been replaced since.
  bool open();

  const std::string& path() const { return path_; }
  std::string full(const std::string& path) const { return path.empty() ? path_ : joined(path_, path); }

  OpenFile open_file(const std::string& path, int flags, mode_t mode = 0) const;
  OpenFile open_folder(const std::string& path) const;

  // Nothing where there is none.
  std::optional<Entry> entry(const std::string& path) const;

  // Calls `visit` with each name in a folder and what it is; nothing, with errno, where that cannot be seen.
  using Visit = std::function<void(const std::string& name, const std::optional<Entry>& entry)>;
  bool each(const std::string& path, const Visit& visit) const;

  // The names in a folder.
  std::optional<std::vector<std::string>> names(const std::string& path) const;

  // True where the folder is there afterwards; a link or a file in its place is an error.
  bool make_folder(const std::string& path, mode_t mode) const;

  // The same for each folder on the way to `path`; what is no folder there is replaced. `sync`: they are on disk.
  bool make_parents(const std::string& path, mode_t mode, bool sync) const;

  bool set_mode(const std::string& path, mode_t mode) const;
  bool make_link(const std::string& target, const std::string& path) const;
  bool hard_link(const std::string& from, const std::string& to) const;

  // Replaces a file or a link at `to`.
  bool rename(const std::string& from, const std::string& to) const;

  // Fails where anything is at `to`.
  bool rename_new(const std::string& from, const std::string& to) const;

  // EINVAL where the file system cannot.
  bool exchange(const std::string& one, const std::string& other) const;

  // A file, a link, or a folder with all that is in it. True where nothing is left.
  bool remove(const std::string& path) const;

  // A folder in which nothing lies.
  bool remove_empty(const std::string& path) const;

  // True where all of the names in the folder are on disk.
  bool sync_folder(const std::string& path) const;
  bool sync_folder_of(const std::string& path) const;

  // The content of a small file; empty where it is none.
  std::string read(const std::string& path, size_t most) const;

  // Appears whole. `sync`: it is on disk.
  bool write(const std::string& path, const std::string& content, bool sync) const;

  void before_change() const {
    if (limits_.before_change) limits_.before_change();
  }

 private:
  int open_beneath(const std::string& path, int flags, mode_t mode) const;
  int walk(const std::string& path, int flags, mode_t mode) const;
  OpenFile parent_of(const std::string& path) const;
  bool rename_with(const std::string& from, const std::string& to, unsigned flags) const;

  std::string path_;
  RootLimits limits_;
  std::shared_ptr<const OpenFile> root_;
};

// The folder of a path, and its last name.
std::string folder_of(const std::string& path);
std::string name_of(const std::string& path);

// Whether `path` lies in `folder`, at any depth; all paths lie in the root.
bool is_beneath(const std::string& path, const std::string& folder);

}  // namespace falcon
