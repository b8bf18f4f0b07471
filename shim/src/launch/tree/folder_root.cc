#include "tree/folder_root.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/clock.h"
#include "common/files.h"

namespace falcon {
namespace {

constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE
constexpr unsigned kExchange = 2;   // RENAME_EXCHANGE
constexpr long kOpenat2 = 437;      // of all architectures
constexpr int kMostAttempts = 8;
constexpr int64_t kBlockBytes = 512;  // of st_blocks

// struct open_how and its flags, linux/openat2.h
struct OpenHow {
  uint64_t flags;
  uint64_t mode;
  uint64_t resolve;
};
constexpr uint64_t kBeneath = 0x08 | 0x04 | 0x02;  // RESOLVE_BENEATH, _NO_SYMLINKS, _NO_MAGICLINKS

int openat2(int folder, const char* path, int flags, mode_t mode) {
  OpenHow how{};
  how.flags = static_cast<uint64_t>(flags);
  how.mode = mode;
  how.resolve = kBeneath;
  int number = -1;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {  // EAGAIN: something was renamed meanwhile
    number = static_cast<int>(syscall(kOpenat2, folder, path, &how, sizeof(how)));
    if (number >= 0 || (errno != EAGAIN && errno != EINTR)) break;
  }
  return number;
}

int64_t in_ns(const timespec& time) { return static_cast<int64_t>(time.tv_sec) * kSecondNs + time.tv_nsec; }

std::optional<Entry> entry_at(int folder, const char* name) {
  struct stat about{};
  if (fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW | (*name == '\0' ? AT_EMPTY_PATH : 0)) != 0) {
    return std::nullopt;
  }
  Entry entry;
  entry.bytes = about.st_size;
  entry.stored = std::min<int64_t>(about.st_size, static_cast<int64_t>(about.st_blocks) * kBlockBytes);
  entry.modified_ns = in_ns(about.st_mtim);
  entry.changed_ns = in_ns(about.st_ctim);
  entry.inode = about.st_ino;
  entry.mode = about.st_mode & 07777;
  if (S_ISREG(about.st_mode)) return entry;
  entry.kind = S_ISDIR(about.st_mode) ? Kind::kFolder : S_ISLNK(about.st_mode) ? Kind::kLink : Kind::kOther;
  if (entry.kind != Kind::kLink) return entry;
  char target[PATH_MAX];
  const ssize_t length = readlinkat(folder, name, target, sizeof(target));
  if (length < 0) return std::nullopt;
  entry.target.assign(target, static_cast<size_t>(length));
  return entry;
}

bool list(int folder, std::vector<std::string>* names) {
  const int copy = fcntl(folder, F_DUPFD_CLOEXEC, 0);
  DIR* entries = copy < 0 ? nullptr : fdopendir(copy);
  if (entries == nullptr) {
    if (copy >= 0) close(copy);
    return false;
  }
  rewinddir(entries);
  errno = 0;
  while (const dirent* found = readdir(entries)) {
    if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0) names->emplace_back(found->d_name);
    errno = 0;
  }
  const int error = errno;
  closedir(entries);
  errno = error;
  return error == 0;
}

bool remove_at(const FolderRoot& root, int folder, const char* name) {
  root.before_change();
  if (unlinkat(folder, name, 0) == 0 || errno == ENOENT) return true;
  if (errno != EISDIR && errno != EPERM && errno != ENOTEMPTY) return false;
  {
    const OpenFile inner(openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!inner.valid() && errno == EACCES) {  // of ours, and closed to us
      fchmodat(folder, name, S_IRWXU, 0);
      errno = EACCES;
    }
    const OpenFile again(inner.valid() ? -1 : openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    const OpenFile& opened = inner.valid() ? inner : again;
    if (!opened.valid()) return errno == ENOENT;
    fchmod(opened.number(), S_IRWXU);
    std::vector<std::string> names;
    if (!list(opened.number(), &names)) return false;
    for (const std::string& each : names) {
      if (!remove_at(root, opened.number(), each.c_str())) return false;
    }
  }
  root.before_change();
  return unlinkat(folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

}  // namespace

OpenFile::~OpenFile() {
  if (number_ < 0) return;
  const int error = errno;
  close(number_);
  errno = error;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_beneath(const std::string& path, const std::string& folder) {
  return folder.empty() ||
         (path.size() > folder.size() && path[folder.size()] == '/' && path.compare(0, folder.size(), folder) == 0);
}

bool FolderRoot::open() {
  struct stat there{};
  struct stat here{};
  if (root_ != nullptr && stat(path_.c_str(), &there) == 0 && fstat(root_->number(), &here) == 0 &&
      there.st_ino == here.st_ino && there.st_dev == here.st_dev) {
    return true;
  }
  root_ = std::make_shared<const OpenFile>(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root_->valid()) return false;
  // ENOSYS: an older kernel. EPERM: a container's filter of system calls that does not know this one.
  const OpenFile probe(openat2(root_->number(), ".", O_PATH | O_CLOEXEC, 0));
  if (!probe.valid() && (errno == ENOSYS || errno == EPERM)) limits_.walk = true;
  return true;
}

int FolderRoot::walk(const std::string& path, int flags, mode_t mode) const {
  int number = fcntl(root_->number(), F_DUPFD_CLOEXEC, 0);
  for (size_t from = 0; number >= 0;) {
    const OpenFile at(number);
    const size_t slash = path.find('/', from);
    const std::string name = path.substr(from, slash == std::string::npos ? slash : slash - from);
    if (name == "..") {
      errno = EXDEV;
      return -1;
    }
    if (slash == std::string::npos) return openat(at.number(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode);
    number = openat(at.number(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    from = slash + 1;
  }
  return -1;
}

int FolderRoot::open_beneath(const std::string& path, int flags, mode_t mode) const {
  if (root_ == nullptr || !root_->valid()) {
    errno = EBADF;
    return -1;
  }
  const std::string& name = path.empty() ? std::string(".") : path;
  if (limits_.walk) return walk(name, flags, mode);
  return openat2(root_->number(), name.c_str(), flags | O_CLOEXEC, (flags & O_CREAT) != 0 ? mode : 0);
}

OpenFile FolderRoot::open_file(const std::string& path, int flags, mode_t mode) const {
  if ((flags & (O_CREAT | O_TRUNC)) != 0) before_change();
  return OpenFile(open_beneath(path, flags | O_NOFOLLOW, mode));
}

OpenFile FolderRoot::open_folder(const std::string& path) const {
  return OpenFile(open_beneath(path, O_RDONLY | O_DIRECTORY, 0));
}

OpenFile FolderRoot::parent_of(const std::string& path) const {
  return OpenFile(open_beneath(folder_of(path), O_PATH | O_DIRECTORY, 0));
}

std::optional<Entry> FolderRoot::entry(const std::string& path) const {
  const OpenFile parent = parent_of(path);
  if (!parent.valid()) return std::nullopt;
  return entry_at(parent.number(), path.empty() ? "." : name_of(path).c_str());
}

std::optional<std::vector<std::string>> FolderRoot::names(const std::string& path) const {
  const OpenFile folder = open_folder(path);
  std::vector<std::string> found;
  if (!folder.valid() || !list(folder.number(), &found)) return std::nullopt;
  return found;
}

bool FolderRoot::each(const std::string& path, const Visit& visit) const {
  const OpenFile folder = open_folder(path);
  std::vector<std::string> found;
  if (!folder.valid() || !list(folder.number(), &found)) return false;
  for (const std::string& name : found) {
    errno = 0;
    visit(name, entry_at(folder.number(), name.c_str()));
  }
  return true;
}

bool FolderRoot::make_folder(const std::string& path, mode_t mode) const {
  const OpenFile parent = parent_of(path);
  if (!parent.valid()) return false;
  before_change();
  if (mkdirat(parent.number(), name_of(path).c_str(), mode) == 0) return true;
  if (errno != EEXIST) return false;
  const std::optional<Entry> there = entry_at(parent.number(), name_of(path).c_str());
  if (there && there->kind == Kind::kFolder) return true;
  errno = ENOTDIR;
  return false;
}

bool FolderRoot::make_parents(const std::string& path, mode_t mode, bool sync) const {
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    const std::optional<Entry> there = entry(folder);
    if (there && there->kind == Kind::kFolder) continue;
    if (there && !remove(folder)) return false;
    if (!make_folder(folder, mode) || (sync && !sync_folder_of(folder))) return false;
  }
  return true;
}

bool FolderRoot::set_mode(const std::string& path, mode_t mode) const {
  const OpenFile folder = open_folder(path);
  if (!folder.valid()) return false;
  before_change();
  return fchmod(folder.number(), mode) == 0;
}

bool FolderRoot::make_link(const std::string& target, const std::string& path) const {
  const OpenFile parent = parent_of(path);
  if (!parent.valid()) return false;
  before_change();
  return symlinkat(target.c_str(), parent.number(), name_of(path).c_str()) == 0;
}

bool FolderRoot::hard_link(const std::string& from, const std::string& to) const {
  if (!limits_.hard_links) {
    errno = EPERM;
    return false;
  }
  const OpenFile source = parent_of(from);
  const OpenFile target = parent_of(to);
  if (!source.valid() || !target.valid()) return false;
  before_change();
  return linkat(source.number(), name_of(from).c_str(), target.number(), name_of(to).c_str(), 0) == 0;
}

bool FolderRoot::rename_with(const std::string& from, const std::string& to, unsigned flags) const {
  const OpenFile source = parent_of(from);
  const OpenFile target = parent_of(to);
  if (!source.valid() || !target.valid()) return false;
  before_change();
  const std::string old = name_of(from);
  const std::string now = name_of(to);
  if (flags == 0) return renameat(source.number(), old.c_str(), target.number(), now.c_str()) == 0;
  return syscall(SYS_renameat2, source.number(), old.c_str(), target.number(), now.c_str(), flags) == 0;
}

bool FolderRoot::rename(const std::string& from, const std::string& to) const { return rename_with(from, to, 0); }

bool FolderRoot::rename_new(const std::string& from, const std::string& to) const {
  if (limits_.exchange && rename_with(from, to, kNoReplace)) return true;
  if (limits_.exchange && errno != EINVAL && errno != ENOSYS) return false;
  // Without the flag: one who puts something there in this instant loses it.
  if (entry(to)) {
    errno = EEXIST;
    return false;
  }
  return errno == ENOENT && rename_with(from, to, 0);
}

bool FolderRoot::exchange(const std::string& one, const std::string& other) const {
  if (limits_.exchange) return rename_with(one, other, kExchange);
  errno = EINVAL;
  return false;
}

bool FolderRoot::remove(const std::string& path) const {
  const OpenFile parent = parent_of(path);
  if (!parent.valid()) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;  // nothing beneath a link is ours
  return remove_at(*this, parent.number(), name_of(path).c_str());
}

bool FolderRoot::remove_empty(const std::string& path) const {
  const OpenFile parent = parent_of(path);
  if (!parent.valid()) return false;
  before_change();
  return unlinkat(parent.number(), name_of(path).c_str(), AT_REMOVEDIR) == 0;
}

bool FolderRoot::sync_folder(const std::string& path) const {
  const OpenFile folder = open_folder(path);
  return folder.valid() && (fsync(folder.number()) == 0 || errno == EINVAL);  // EINVAL: this file system needs none
}

bool FolderRoot::sync_folder_of(const std::string& path) const { return sync_folder(folder_of(path)); }

std::string FolderRoot::read(const std::string& path, size_t most) const {
  const OpenFile file = open_file(path, O_RDONLY | O_NONBLOCK);
  struct stat about{};
  std::string content;
  if (!file.valid() || fstat(file.number(), &about) != 0 || !S_ISREG(about.st_mode)) return content;
  content.resize(std::min(most, static_cast<size_t>(about.st_size)));
  const ssize_t count = pread(file.number(), content.data(), content.size(), 0);
  content.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return content;
}

bool FolderRoot::write(const std::string& path, const std::string& content, bool sync) const {
  const std::string fresh = path + ".new";
  if (!remove(fresh)) return false;
  {
    const OpenFile file = open_file(fresh, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (!file.valid() || !write_all(file.number(), content.data(), content.size())) return false;
    if (sync && fsync(file.number()) != 0) return false;
  }
  const std::optional<Entry> there = entry(path);
  if (there && there->kind == Kind::kFolder && !remove(path)) return false;
  return rename(fresh, path) && (!sync || sync_folder_of(path));
}

}  // namespace falcon
