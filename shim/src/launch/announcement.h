// Tells the agent that a rank has printed: at once after a quiet time, and then at most five times a second.
#pragma once

#include <cstdint>
#include <string>

namespace falcon {

// An empty file changes its name, for which the agent watches the folder: that needs no space on any disk.
class Announcement {
 public:
  static constexpr int64_t kLeastNs = 200'000'000;  // between two

  explicit Announcement(std::string path) : path_(std::move(path)) {}

  // Something was printed; what has not been told for long is told now.
  void note(int64_t now_ns);

  // Tells what was printed since the last time, if it is time.
  void tell(int64_t now_ns);

  // Until when nobody needs to call tell(); -1: until something is printed.
  int wait_ms(int64_t now_ns) const;

 private:
  bool rename_file();

  std::string path_;
  bool other_name_ = false;
  bool due_ = false;
  int64_t told_ns_ = -kLeastNs;
};

}  // namespace falcon
