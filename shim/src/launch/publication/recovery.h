// Brings the durable folder into a whole state at each start, before anything is read from it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "publication/publication.h"
#include "publication/shared_folder.h"
#include "tree/folder_root.h"

namespace falcon {

class Recovery {
 public:
  // `pause`: waits for so long [ns].
  Recovery(const FolderRoot& durable, SharedFolder shared, Publication* publication, std::function<void(int64_t)> pause)
      : durable_(durable), shared_(shared), publication_(*publication), pause_(std::move(pause)) {}

  // Makes Falcon's own folders; whatever else lies in their places is removed. Why that failed, or nothing.
  std::string make_folders() const;

  // Publishes what replicas of earlier generations had agreed on and not finished, and waits for those that do the
  // same. What else they had under way is dropped. Why something could not be finished, or nothing.
  std::string roll_forward();

 private:
  bool adopt();
  bool others_are_at_it() const;
  std::string finish_own();
  void drop_older() const;

  const FolderRoot& durable_;
  SharedFolder shared_;
  Publication& publication_;
  std::function<void(int64_t)> pause_;
  int adopted_ = 0;
};

}  // namespace falcon
