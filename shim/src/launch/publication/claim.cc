#include "publication/claim.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace falcon {
namespace {

constexpr size_t kMostBytes = 4096;

std::string text_of(const std::string& owner, int generation) {
  return owner + " " + std::to_string(generation) + "\n";
}

}  // namespace

Claim::Claim(const FolderRoot& durable, std::string owner, int generation, int replica)
    : durable_(durable),
      path_(std::string(kOwnFolder) + "/owner"),
      owner_(std::move(owner)),
      generation_(generation),
      draft_(path_ + "." + std::to_string(replica)) {}

std::string Claim::take() const {
  const std::string wanted = text_of(owner_, generation_);
  const std::string found = durable_.read(path_, kMostBytes);
  if (found == wanted) return "";
  const size_t space = found.find(' ');
  if (space != std::string::npos && found.substr(0, space) == owner_ &&
      strtol(found.c_str() + space, nullptr, 10) > generation_) {
    return durable_.full(path_) + ": a newer generation of this job uses the folder";
  }
  const bool made = durable_.make_folder(kOwnFolder, 0777) && durable_.write(draft_, wanted, true);
  if (!made || !durable_.rename(draft_, path_)) return durable_.full(path_) + ": " + strerror(errno);
  return "";
}

bool Claim::holds() const {
  const std::string found = durable_.read(path_, kMostBytes);
  if (found.empty()) return take().empty();  // somebody has emptied the folder
  return found == text_of(owner_, generation_);
}

}  // namespace falcon
