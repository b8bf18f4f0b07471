// Gives the script's folder the content of the durable one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "folder/fill_steps.h"
#include "tree/folder_root.h"
#include "tree/mover.h"

namespace falcon {

class FolderFill {
 public:
  // `goes_on`: false where the start is called off. `in_time`: false where what is left is to become links.
  FolderFill(const FolderRoot& durable, const FolderRoot& memory, std::function<bool()> goes_on,
             std::function<bool()> in_time)
      : durable_(durable), memory_(memory), goes_on_(std::move(goes_on)), in_time_(std::move(in_time)) {}

  // Fetches the newest files, `most` bytes of them. Why it failed; empty where it did not.
  std::string fill(int64_t most);

  // What of the durable folder cannot be read: path → why. It is not in the script's folder, and not gone.
  const std::map<std::string, std::string>& unread() const { return unread_; }

 private:
  std::string carry_out(const std::vector<FillStep>& steps);
  Outcome carry_out(const FillStep& step, const Mover& mover) const;
  bool is_unread(const std::string& path) const;

  const FolderRoot& durable_;
  const FolderRoot& memory_;
  std::function<bool()> goes_on_;
  std::function<bool()> in_time_;
  std::map<std::string, std::string> unread_;
};

}  // namespace falcon
