// Whose the durable folder is: the newest generation of one job. What an older one still has is not put there.
#pragma once

#include <string>

namespace falcon {

class Claim {
 public:
  // `own_folder`: Falcon's own, in the durable one. `owner`: the job. `replica`: this pod, among those of the job.
  Claim(const std::string& own_folder, std::string owner, int generation, int replica);

  // Why the folder cannot be had; empty where this generation has it now.
  std::string take() const;

  // Whether nobody has taken it since.
  bool holds() const;

 private:
  std::string path_;
  std::string owner_;
  int generation_;
  std::string draft_;
};

}  // namespace falcon
