// Puts files, folders and links from one folder into another, so that each appears there whole and under its own times.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tree.h"

namespace falcon {

// Called again and again while a file is being copied, with the bytes since the last call. False stops the copy.
using Progress = std::function<bool(int64_t)>;

enum class Moved { kDone, kStopped, kChanged, kFailed };

struct Outcome {
  Moved how = Moved::kDone;
  std::string error;  // of one that failed: the path and the reason
};

class Mover {
 public:
  // From `from` to `to`, by way of the file `part` on the file system of `to`. `durable`: what was put is on disk when
  // a call returns, and `may_publish` is asked before a name appears or goes.
  Mover(std::string from, std::string to, std::string part, bool durable, std::function<bool()> may_publish)
      : from_(std::move(from)),
        to_(std::move(to)),
        part_(std::move(part)),
        durable_(durable),
        may_publish_(std::move(may_publish)) {}

  // `entry`: what is expected to lie there. kChanged where it is no longer so, before or after it was read.
  Outcome put(const std::string& path, const Entry& entry, const Progress& progress) const;

  // A symbolic link; takes the place of what is there.
  Outcome put_link(const std::string& path, const std::string& target) const;

  Outcome remove(const std::string& path) const;

 private:
  Outcome put_file(const std::string& path, const Entry& entry, const Progress& progress) const;
  Outcome put_folder(const std::string& path, mode_t mode) const;
  Outcome publish(const std::string& path) const;
  Outcome sync_folder_of(const std::string& path) const;
  bool make_parents(const std::string& path) const;

  std::string from_;
  std::string to_;
  std::string part_;
  bool durable_;
  std::function<bool()> may_publish_;
};

// Removes a file, a link, or a folder with all that is in it. False with errno set.
bool remove_all(const std::string& path);

}  // namespace falcon
