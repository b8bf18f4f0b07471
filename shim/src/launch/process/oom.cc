#include "process/oom.h"

namespace falcon {

void OomKills::begin(Counter kills) {
  first_ = last_ = kills;
  unexplained_ = 0;
}

void OomKills::note(Counter kills, int64_t now_ns) {
  if (!kills) return;
  if (last_ && *kills > *last_) {
    unexplained_ += *kills - *last_;
    newest_ns_ = now_ns;
  }
  if (!first_) first_ = kills;
  last_ = kills;
}

bool OomKills::explains(int64_t now_ns) {
  if (now_ns - newest_ns_ > kExplainsNs) unexplained_ = 0;
  if (unexplained_ == 0) return false;
  --unexplained_;
  return true;
}

Counter OomKills::count() const {
  if (!first_ || !last_) return {};
  return *last_ - *first_;
}

}  // namespace falcon
