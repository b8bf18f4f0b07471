// Puts files, folders and links from one folder into another, so that each appears there whole and under its own times.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tree/folder_root.h"
#include "tree/tree.h"

namespace falcon {

// Called again and again while a file is being copied, with the bytes since the last call. False stops the copy.
using Progress = std::function<bool(int64_t)>;

enum class Moved { kDone, kStopped, kChanged, kUnreadable, kFailed };

struct Outcome {
  Moved how = Moved::kDone;
  std::string error;  // of one that failed or could not be read: the path and the reason
};

// An outcome that quotes errno.
Outcome failed(const FolderRoot& root, const std::string& path);

// What is on disk when a call returns.
enum class Synced { kNothing, kContent, kNames };

class Mover {
 public:
  // From `from` to `to`, by way of `part`, a path beneath `to`.
  Mover(const FolderRoot& from, const FolderRoot& to, std::string part, Synced synced)
      : from_(from), to_(to), part_(std::move(part)), synced_(synced) {}

  // `entry`: what is expected at `path`. kChanged where it is no longer so, before or after it was read. `to`: a path
  // whose folders exist; what is there is replaced.
  Outcome put(const std::string& path, const Entry& entry, const std::string& to, const Progress& progress) const;

  // A symbolic link; takes the place of what is there.
  Outcome put_link(const std::string& target, const std::string& to) const;

 private:
  Outcome put_file(const std::string& path, const Entry& entry, const std::string& to, const Progress& progress) const;
  Outcome copy(const std::string& path, const Entry& entry, const std::string& to, const Progress& progress) const;
  Outcome copy_content(const OpenFile& in, const OpenFile& out, const std::string& path, const std::string& to,
                       const Progress& goes_on) const;
  Outcome put_folder(const std::string& to, mode_t mode) const;
  Outcome publish(const std::string& to) const;

  const FolderRoot& from_;
  const FolderRoot& to_;
  std::string part_;
  Synced synced_;
};

}  // namespace falcon
