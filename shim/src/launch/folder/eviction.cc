#include "folder/eviction.h"

#include <optional>

namespace falcon {

bool replace_with_link(const FolderRoot& memory, const FolderRoot& durable, const std::string& path,
                       const std::function<std::set<std::string>()>& writing) {
  const std::string aside = std::string(kOwnFolder) + "/part";
  const std::optional<Entry> before = memory.entry(path);
  const std::optional<Entry> copy = durable.entry(path);
  if (!before || !copy || !is_copy(*before, *copy)) return false;
  memory.make_folder(kOwnFolder, 0700);
  bool done = memory.make_link(durable.full(path), aside) && memory.exchange(aside, path);
  if (done) {
    const std::optional<Entry> now = memory.entry(aside);
    if (!now || !unchanged(*before, *now) || writing().count(aside) != 0) {
      done = false;
      if (!memory.exchange(aside, path)) return false;  // the name has a newer file meanwhile: this one is not wanted
    }
  }
  memory.remove(kOwnFolder);
  return done;
}

}  // namespace falcon
