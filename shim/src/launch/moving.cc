#include "moving.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "clock.h"
#include "files.h"

namespace falcon {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kMostNames = 1 << 20;

Outcome failed(const std::string& path) { return {Moved::kFailed, path + ": " + strerror(errno)}; }

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

timespec time_of(int64_t ns) {
  timespec time{};
  time.tv_sec = ns / kSecondNs;
  time.tv_nsec = ns % kSecondNs;
  return time;
}

// Closes with its scope.
class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0) : number_(open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~File() {
    if (number_ >= 0) close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

bool remove_all(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return true;
  if (errno != EISDIR && errno != EPERM) return false;
  for (const std::string& name : list_files(path, kMostNames)) {
    if (!remove_all(joined(path, name))) return false;
  }
  return rmdir(path.c_str()) == 0 || errno == ENOENT;
}

Outcome Mover::put(const std::string& path, const Entry& entry, const Progress& progress) const {
  if (entry.kind == Kind::kFolder) return put_folder(path, entry.mode);
  if (entry.kind == Kind::kLink) return put_link(path, entry.target);
  return put_file(path, entry, progress);
}

Outcome Mover::put_file(const std::string& path, const Entry& entry, const Progress& progress) const {
  const std::string source = from_ + "/" + path;
  const auto as_expected = [&] {
    const std::optional<Entry> now = read_entry(source);
    return now && unchanged(entry, *now);
  };
  const File in(source, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (in.number() < 0 && (errno == ENOENT || errno == ELOOP)) return {Moved::kChanged, ""};
  if (in.number() < 0) return failed(source);
  if (!as_expected()) return {Moved::kChanged, ""};
  unlink(part_.c_str());
  const File out(part_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  if (out.number() < 0) return failed(part_);
  std::vector<char> piece(kPieceBytes);
  for (ssize_t count = 0; (count = read(in.number(), piece.data(), piece.size())) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed(source);
    if (!write_all(out.number(), piece.data(), static_cast<size_t>(count))) {
      const Outcome outcome = failed(to_ + "/" + path);
      unlink(part_.c_str());  // the disk may be full
      return outcome;
    }
    if (!progress(count)) return {Moved::kStopped, ""};
    if (!as_expected()) return {Moved::kChanged, ""};
  }
  fchmod(out.number(), entry.mode);  // a file system may have none
  const timespec times[] = {time_of(entry.modified_ns), time_of(entry.modified_ns)};
  futimens(out.number(), times);
  if (durable_ && fsync(out.number()) != 0) return failed(to_ + "/" + path);
  if (!as_expected()) return {Moved::kChanged, ""};
  return publish(path);
}

Outcome Mover::publish(const std::string& path) const {
  const std::string target = to_ + "/" + path;
  if (!may_publish_()) return {Moved::kStopped, ""};
  if (!make_parents(path)) return failed(parent(target));
  if (rename(part_.c_str(), target.c_str()) != 0) {
    if ((errno != EISDIR && errno != ENOTEMPTY && errno != EEXIST) || !remove_all(target)) return failed(target);
    if (rename(part_.c_str(), target.c_str()) != 0) return failed(target);
  }
  return sync_folder_of(path);
}

Outcome Mover::put_folder(const std::string& path, mode_t mode) const {
  const std::string target = to_ + "/" + path;
  if (!may_publish_()) return {Moved::kStopped, ""};
  if (!make_parents(path)) return failed(parent(target));
  const std::optional<Entry> there = read_entry(target);
  if (there && there->kind != Kind::kFolder && unlink(target.c_str()) != 0) return failed(target);
  if (mkdir(target.c_str(), 0700) != 0 && errno != EEXIST) return failed(target);
  chmod(target.c_str(), mode | S_IRWXU);  // what is to lie in it has to be written
  return sync_folder_of(path);
}

Outcome Mover::put_link(const std::string& path, const std::string& target) const {
  unlink(part_.c_str());
  if (symlink(target.c_str(), part_.c_str()) != 0) return failed(part_);
  return publish(path);
}

Outcome Mover::remove(const std::string& path) const {
  const std::string target = to_ + "/" + path;
  if (!may_publish_()) return {Moved::kStopped, ""};
  const std::optional<Entry> there = read_entry(target);
  if (!there) return errno == ENOENT || errno == ENOTDIR ? Outcome{} : failed(target);
  const bool folder = there->kind == Kind::kFolder;
  // A folder in which another pod's files still lie stays.
  const bool gone = folder ? rmdir(target.c_str()) == 0 || errno == ENOTEMPTY || errno == EEXIST || errno == ENOENT
                           : unlink(target.c_str()) == 0 || errno == ENOENT;
  return gone ? sync_folder_of(path) : failed(target);
}

bool Mover::make_parents(const std::string& path) const {
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string folder = to_ + "/" + path.substr(0, slash);
    if (mkdir(folder.c_str(), 0777) == 0) {
      if (sync_folder_of(path.substr(0, slash)).how != Moved::kDone) return false;
    } else if (errno != EEXIST) {
      return false;
    }
  }
  return true;
}

Outcome Mover::sync_folder_of(const std::string& path) const {
  if (!durable_) return {};
  const std::string folder = parent(to_ + "/" + path);
  return sync_folder(folder) ? Outcome{} : failed(folder);
}

}  // namespace falcon
