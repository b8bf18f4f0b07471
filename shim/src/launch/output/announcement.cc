#include "output/announcement.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace falcon {

void Announcement::note(int64_t now_ns) {
  due_ = true;
  tell(now_ns);
}

void Announcement::tell(int64_t now_ns) {
  if (!due_ || now_ns < next_ns()) return;
  due_ = false;
  told_ns_ = now_ns;
  spent_until_ns_ = std::max(spent_until_ns_, now_ns) + kEachNs;
  if (rename_file() || errno != ENOENT) return;
  const std::string name = path_ + (other_name_ ? ".1" : ".0");
  const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file < 0) return;
  fchmod(file, 0644);  // whatever the umask
  close(file);
  rename_file();
}

int Announcement::wait_ms(int64_t now_ns) const {
  if (!due_) return -1;
  const int64_t left_ns = next_ns() - now_ns;
  return left_ns <= 0 ? 0 : static_cast<int>(left_ns / 1'000'000) + 1;
}

int64_t Announcement::next_ns() const {
  return std::max(told_ns_ + kLeastNs, spent_until_ns_ - (kAtOnce - 1) * kEachNs);
}

bool Announcement::rename_file() {
  const std::string from = path_ + (other_name_ ? ".1" : ".0");
  const std::string to = path_ + (other_name_ ? ".0" : ".1");
  if (rename(from.c_str(), to.c_str()) != 0) return false;
  other_name_ = !other_name_;
  return true;
}

}  // namespace falcon
