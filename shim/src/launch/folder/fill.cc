#include "folder/fill.h"

#include <cerrno>
#include <optional>

namespace falcon {

std::string FolderFill::fill(int64_t most) {
  std::string error;
  const std::optional<Listing> durable = read_tree(durable_, &error);
  const std::optional<Listing> memory = durable ? read_tree(memory_, &error) : std::nullopt;
  if (!memory) return error;
  unread_ = durable->unread;
  if (!memory_.make_folder(kOwnFolder, 0700) &&
      (!memory_.remove(kOwnFolder) || !memory_.make_folder(kOwnFolder, 0700))) {
    return failed(memory_, kOwnFolder).error;
  }
  error = carry_out(plan_fill(durable->tree, memory->tree, durable_.path(), most));
  memory_.remove(kOwnFolder);
  return error;
}

bool FolderFill::is_unread(const std::string& path) const {
  for (std::string each = path; !each.empty(); each = folder_of(each)) {
    if (unread_.count(each) != 0) return true;
  }
  return false;
}

std::string FolderFill::carry_out(const std::vector<FillStep>& steps) {
  const Mover mover(durable_, memory_, std::string(kOwnFolder) + "/part", Synced::kNothing);
  for (const FillStep& step : steps) {
    if (!goes_on_()) return "";
    if (step.what == FillStep::What::kRemove && is_unread(step.path)) continue;
    const Outcome outcome = carry_out(step, mover);
    if (outcome.how == Moved::kFailed) return outcome.error;
  }
  return "";
}

Outcome FolderFill::carry_out(const FillStep& step, const Mover& mover) const {
  const auto goes_on = [this](int64_t) { return goes_on_() && in_time_(); };
  if (step.what == FillStep::What::kRemove) {
    return memory_.remove(step.path) ? Outcome{} : failed(memory_, step.path);
  }
  if (!memory_.make_parents(step.path, 0777, false)) return failed(memory_, step.path);
  if (step.what == FillStep::What::kReplace) return mover.put_link(durable_.full(step.path), step.path);
  Outcome outcome = mover.put(step.path, step.entry, step.path, goes_on);
  // No time, no room, or it cannot be read: a link serves as well.
  if (step.what == FillStep::What::kFetch && outcome.how != Moved::kDone) {
    outcome = mover.put_link(durable_.full(step.path), step.path);
  }
  return outcome;
}

}  // namespace falcon
