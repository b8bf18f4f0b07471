#include "claim.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "files.h"

namespace falcon {
namespace {

constexpr size_t kMostBytes = 4096;

std::string text_of(const std::string& owner, int generation) {
  return owner + " " + std::to_string(generation) + "\n";
}

}  // namespace

Claim::Claim(const std::string& own_folder, std::string owner, int generation, int replica)
    : path_(own_folder + "/owner"),
      owner_(std::move(owner)),
      generation_(generation),
      draft_(own_folder + "/owner." + std::to_string(replica)) {}

std::string Claim::take() const {
  const std::string wanted = text_of(owner_, generation_);
  const std::string found = read_regular(path_, kMostBytes);
  if (found == wanted) return "";
  const size_t space = found.find(' ');
  if (space != std::string::npos && found.substr(0, space) == owner_ &&
      strtol(found.c_str() + space, nullptr, 10) > generation_) {
    return path_ + ": a newer generation of this job uses the folder";
  }
  if (!write_file(draft_, wanted) || rename(draft_.c_str(), path_.c_str()) != 0) {
    return path_ + ": " + strerror(errno);
  }
  return "";
}

bool Claim::holds() const {
  const std::string found = read_regular(path_, kMostBytes);
  if (found.empty()) return take().empty();  // somebody has emptied the folder
  return found == text_of(owner_, generation_);
}

}  // namespace falcon
