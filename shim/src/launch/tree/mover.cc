#include "tree/mover.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "common/files.h"

namespace falcon {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr int64_t kSyncedBytes = 64 << 20;  // so that no later sync of a large file takes long

timespec time_of(int64_t ns) {
  timespec time{};
  time.tv_sec = ns / kSecondNs;
  time.tv_nsec = ns % kSecondNs;
  return time;
}

}  // namespace

Outcome failed(const FolderRoot& root, const std::string& path) {
  const int error = errno;
  return {Moved::kFailed, root.full(path) + ": " + strerror(error)};
}

Outcome Mover::put(const std::string& path, const Entry& entry, const std::string& to, const Progress& progress) const {
  if (entry.kind == Kind::kFolder) return put_folder(to, entry.mode);
  if (entry.kind == Kind::kLink) return put_link(entry.target, to);
  Outcome outcome = put_file(path, entry, to, progress);
  if (outcome.how != Moved::kDone) to_.remove(part_);  // the disk may be full
  return outcome;
}

Outcome Mover::put_file(const std::string& path, const Entry& entry, const std::string& to,
                        const Progress& progress) const {
  if (!to_.remove(part_)) return failed(to_, part_);
  Outcome outcome = copy(path, entry, to, progress);
  return outcome.how == Moved::kDone ? publish(to) : outcome;
}

Outcome Mover::copy(const std::string& path, const Entry& entry, const std::string& to,
                    const Progress& progress) const {
  const auto as_expected = [&] {
    const std::optional<Entry> now = from_.entry(path);
    return now && unchanged(entry, *now);
  };
  const OpenFile in = from_.open_file(path, O_RDONLY | O_NONBLOCK);
  if (!in.valid() && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) return {Moved::kChanged, ""};
  if (!in.valid()) return {Moved::kUnreadable, failed(from_, path).error};
  if (!as_expected()) return {Moved::kChanged, ""};
  const OpenFile out = to_.open_file(part_, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (!out.valid()) return failed(to_, part_);
  bool as_before = true;
  const Progress goes_on = [&](int64_t bytes) {
    if (!progress(bytes)) return false;
    as_before = as_expected();
    return as_before;
  };
  Outcome outcome = copy_content(in, out, path, to, goes_on);
  if (!as_before) return {Moved::kChanged, ""};
  if (outcome.how != Moved::kDone) return outcome;
  fchmod(out.number(), entry.mode);  // a file system may have none
  const timespec times[] = {time_of(entry.modified_ns), time_of(entry.modified_ns)};
  futimens(out.number(), times);
  if (synced_ != Synced::kNothing && fsync(out.number()) != 0) return failed(to_, to);
  return as_expected() ? Outcome{} : Outcome{Moved::kChanged, ""};
}

// Holes stay holes.
Outcome Mover::copy_content(const OpenFile& in, const OpenFile& out, const std::string& path, const std::string& to,
                            const Progress& goes_on) const {
  std::vector<char> piece(kPieceBytes);
  int64_t unsynced = 0;
  const off_t end = lseek(in.number(), 0, SEEK_END);
  for (off_t at = 0; at < end;) {
    const off_t data = lseek(in.number(), at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    at = data < 0 ? at : data;  // EINVAL: the file system knows no holes
    const ssize_t count = pread(in.number(), piece.data(), piece.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed(from_, path);
    if (count == 0) break;
    to_.before_change();
    if (lseek(out.number(), at, SEEK_SET) < 0) return failed(to_, to);
    if (!write_all(out.number(), piece.data(), static_cast<size_t>(count))) return failed(to_, to);
    at += count;
    unsynced += count;
    if (synced_ != Synced::kNothing && unsynced >= kSyncedBytes) {
      if (fdatasync(out.number()) != 0) return failed(to_, to);
      unsynced = 0;
    }
    if (!goes_on(count)) return {Moved::kStopped, ""};
  }
  return ftruncate(out.number(), end) == 0 ? Outcome{} : failed(to_, to);
}

Outcome Mover::publish(const std::string& to) const {
  if (!to_.rename(part_, to)) {
    if ((errno != EISDIR && errno != ENOTEMPTY && errno != EEXIST) || !to_.remove(to)) return failed(to_, to);
    if (!to_.rename(part_, to)) return failed(to_, to);
  }
  return synced_ != Synced::kNames || to_.sync_folder_of(to) ? Outcome{} : failed(to_, to);
}

Outcome Mover::put_folder(const std::string& to, mode_t mode) const {
  if (!to_.make_folder(to, 0700) && (errno != ENOTDIR || !to_.remove(to) || !to_.make_folder(to, 0700))) {
    return failed(to_, to);
  }
  to_.set_mode(to, mode | S_IRWXU);  // what is to lie in it has to be written
  return synced_ != Synced::kNames || to_.sync_folder_of(to) ? Outcome{} : failed(to_, to);
}

Outcome Mover::put_link(const std::string& target, const std::string& to) const {
  if (!to_.remove(part_) || !to_.make_link(target, part_)) return failed(to_, part_);
  return publish(to);
}

}  // namespace falcon
