// Announces to the agent that a rank has printed: at once, and over longer times at most five times a second.
//
// A traceback is printed in pieces over some milliseconds, and its last line says what happened: after a quiet second
// five announcements may follow each other quickly.
#pragma once

#include <cstdint>
#include <string>

namespace falcon {

// An empty file changes its name, for which the agent watches the folder: that needs no space on any disk.
class Announcement {
 public:
  static constexpr int64_t kEachNs = 200'000'000;  // on average, one in
  static constexpr int kAtOnce = 5;                // that were saved up while it was quiet
  static constexpr int64_t kLeastNs = 20'000'000;  // between two: the agent looks no more often

  explicit Announcement(std::string path) : path_(std::move(path)) {}

  // Something was printed. It is announced now, unless the last announcement is too recent.
  void note(int64_t now_ns);

  // Announces what was printed since the last time, if it is time.
  void tell(int64_t now_ns);

  // Until when tell() need not be called; -1: until something is printed.
  int wait_ms(int64_t now_ns) const;

 private:
  bool rename_file();
  int64_t next_ns() const;  // when the next announcement may come

  std::string path_;
  bool other_name_ = false;
  bool due_ = false;
  int64_t told_ns_ = -kLeastNs;
  int64_t spent_until_ns_ = 0;  // each announcement spends kEachNs of time, some of it in advance
};

}  // namespace falcon
