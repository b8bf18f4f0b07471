#include "publication/recovery.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <vector>

#include "common/clock.h"

namespace falcon {
namespace {

constexpr int64_t kPauseNs = kSecondNs / 20;
constexpr int kMostPauses = 600;  // half a minute, for a replica that has died meanwhile
constexpr size_t kDigest = 32;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool is_generation(const std::string& name) {
  return name.size() > 1 && name[0] == 'g' &&
         std::all_of(name.begin() + 1, name.end(), [](unsigned char c) { return isdigit(c) != 0; });
}

std::vector<std::string> names(const FolderRoot& root, const std::string& folder) {
  return root.names(folder).value_or(std::vector<std::string>());
}

}  // namespace

std::string Recovery::make_folders() const {
  for (const std::string& folder : {SharedFolder::own(), SharedFolder::trash(), shared_.base(), shared_.stages(),
                                    shared_.claims(), shared_.rolling()}) {
    if (durable_.make_folder(folder, 0777)) continue;
    if (errno != ENOTDIR || !durable_.remove(folder) || !durable_.make_folder(folder, 0777)) {
      return durable_.full(folder) + ": " + strerror(errno);
    }
  }
  return "";
}

// Takes the claims of other generations: of several replicas that try, one gets each.
bool Recovery::adopt() {
  bool found = false;
  for (const std::string& generation : names(durable_, SharedFolder::own())) {
    const std::string base = joined(SharedFolder::own(), generation);
    if (!is_generation(generation) || base == shared_.base()) continue;
    for (const std::string& folder : {base + "/claimed", base + "/rolling"}) {
      for (const std::string& name : names(durable_, folder)) {
        found = true;
        std::string to = joined(shared_.rolling(), name.substr(0, kDigest));
        to += "." + std::to_string(++adopted_) + shared_.suffix();
        durable_.rename_new(joined(folder, name), to);
      }
    }
  }
  return found;
}

bool Recovery::others_are_at_it() const {
  const std::vector<std::string> all = names(durable_, shared_.rolling());
  return std::any_of(all.begin(), all.end(),
                     [&](const std::string& name) { return !ends_with(name, shared_.suffix()); });
}

std::string Recovery::finish_own() {
  std::string error;
  for (const std::string& name : names(durable_, shared_.rolling())) {
    if (!ends_with(name, shared_.suffix())) continue;
    const Outcome outcome = publication_.finish(joined(shared_.rolling(), name));
    if (outcome.how != Moved::kDone) error = outcome.error;
  }
  return error;
}

std::string Recovery::roll_forward() {
  for (const std::string& name : names(durable_, shared_.rolling())) {
    // Left by an earlier process of this replica: its number must not be used again.
    if (ends_with(name, shared_.suffix())) adopted_ += kMostPauses;
  }
  std::string error;
  for (int pauses = 0; pauses < kMostPauses; ++pauses) {
    const bool adopted = adopt();
    error = finish_own();
    if (!adopted && !others_are_at_it()) break;
    if (!adopted) pause_(kPauseNs);
  }
  drop_older();
  publication_.empty_trash();
  return error;
}

void Recovery::drop_older() const {
  for (const std::string& generation : names(durable_, SharedFolder::own())) {
    const std::string base = joined(SharedFolder::own(), generation);
    if (!is_generation(generation) || base == shared_.base()) continue;
    if (!names(durable_, base + "/claimed").empty() || !names(durable_, base + "/rolling").empty()) continue;
    const std::string to = SharedFolder::trash() + "/" + generation + shared_.suffix();
    durable_.remove(to);
    if (durable_.rename_new(base, to)) durable_.remove(to);
  }
}

}  // namespace falcon
