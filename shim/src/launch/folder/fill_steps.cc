#include "folder/fill_steps.h"

#include <algorithm>

namespace falcon {
namespace {

using What = FillStep::What;

std::vector<Tree::const_iterator> newest_first(const Tree& durable) {
  std::vector<Tree::const_iterator> files;
  for (auto at = durable.begin(); at != durable.end(); ++at) {
    if (at->second.kind == Kind::kFile) files.push_back(at);
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    return a->second.modified_ns != b->second.modified_ns ? a->second.modified_ns > b->second.modified_ns
                                                          : a->first < b->first;
  });
  return files;
}

}  // namespace

std::vector<FillStep> plan_fill(const Tree& durable, const Tree& memory, const std::string& folder, int64_t most) {
  std::vector<FillStep> steps;
  for (auto at = memory.rbegin(); at != memory.rend(); ++at) {  // what lies in a folder goes before it
    const auto found = durable.find(at->first);
    const bool link = found != durable.end() && found->second.kind == Kind::kFile && at->second.kind == Kind::kLink;
    if (found == durable.end() || (found->second.kind != at->second.kind && !link)) {
      steps.push_back({What::kRemove, at->first, {}});
    }
  }
  for (const auto& [path, entry] : durable) {
    const auto found = memory.find(path);
    const bool there = found != memory.end() && is_copy(entry, found->second);
    if (entry.kind == Kind::kFolder && !there) steps.push_back({What::kFolder, path, entry});
    if (entry.kind == Kind::kLink && !there) steps.push_back({What::kLink, path, entry});
  }
  int64_t used = 0;
  for (const auto& at : newest_first(durable)) {
    const auto& [path, entry] = *at;
    const auto found = memory.find(path);
    const bool fits = used + entry.stored <= most;
    if (fits) used += entry.stored;
    if (!fits) {
      const bool linked =
          found != memory.end() && found->second.kind == Kind::kLink && found->second.target == joined(folder, path);
      if (!linked) steps.push_back({What::kReplace, path, entry});
    } else if (found == memory.end() || !is_copy(found->second, entry)) {
      steps.push_back({What::kFetch, path, entry});
    }
  }
  return steps;
}

}  // namespace falcon
