#include "folder/path_errors.h"

#include <cstdio>

namespace falcon {
namespace {

constexpr size_t kMostErrors = 1000;

}  // namespace

void PathErrors::note(const std::string& path, const std::string& text) {
  const auto found = errors_.find(path);
  if (found != errors_.end() && found->second == text) return;
  if (found == errors_.end() && errors_.size() >= kMostErrors) return;
  errors_[path] = text;
  fprintf(stderr, "falcon-launch: %s\n", text.c_str());
}

void PathErrors::replace(const std::map<std::string, std::string>& errors, std::map<std::string, std::string>* known) {
  for (const auto& [path, text] : *known) {
    if (errors.count(path) == 0) clear(path);
  }
  for (const auto& [path, text] : errors) note(path, text);
  *known = errors;
}

std::string PathErrors::text() const {
  if (errors_.empty()) return "";
  const std::string more = errors_.size() > 1 ? " (and " + std::to_string(errors_.size() - 1) + " more)" : "";
  return errors_.begin()->second + more;
}

}  // namespace falcon
