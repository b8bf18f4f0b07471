// Reads how full the file systems are that this container can write to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace falcon {

struct Volume {
  std::string path;
  int64_t bytes = 0;
  int64_t limit_bytes = 0;  // what an ordinary user may fill
  int64_t files = 0;
  int64_t limit_files = 0;  // 0: the file system does not count them
};

// The mount points from the text of /proc/self/mountinfo whose file systems a program may fill, "/" last.
std::vector<std::string> writable_mounts(const std::string& mountinfo);

// The file systems at these paths, each once. A file system whose server is gone makes this wait.
std::vector<Volume> read_volumes(const std::vector<std::string>& paths);

// Reads them again and again in a thread of its own: what makes that thread wait delays nothing else.
class Volumes {
 public:
  Volumes();

  std::vector<Volume> newest() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // the thread outlives us where it waits for a server
};

}  // namespace falcon
