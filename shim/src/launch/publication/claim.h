// Claims the durable folder for the newest generation of one job. What an older generation still has is not put there.
#pragma once

#include <string>

#include "tree/folder_root.h"

namespace falcon {

class Claim {
 public:
  // `owner`: the job. `replica`: this pod, among those of the job. Falcon's own folder must be there.
  Claim(const FolderRoot& durable, std::string owner, int generation, int replica);

  // Why the folder cannot be had; empty where this generation has it now.
  std::string take() const;

  // Whether it still belongs to this generation.
  bool holds() const;

 private:
  const FolderRoot& durable_;
  std::string path_;
  std::string owner_;
  int generation_;
  std::string draft_;
};

}  // namespace falcon
