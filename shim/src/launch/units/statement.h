// Encodes what one replica states to the others about the folder that they share: a small file on the volume, replaced
// as a whole. It touches no files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace falcon {

enum class Following { kFollowing, kFlushing, kLeft };

struct Statement {
  int64_t sequence = 0;
  Following state = Following::kFollowing;
  bool well = false;                          // its ranks have all ended with code 0
  std::map<std::string, int64_t> units;       // changed and not durable → the version that is staged; 0: none yet
  std::map<std::string, std::string> agreed;  // units → the versions of all replicas with which they may be published
  std::set<std::string> refused;              // units in which its part is missing, and will not come
  bool naming = false;                        // names of its own wait
  int64_t names = 0;                          // rounds of names that it wants to publish
  int64_t removals = 0;
  std::map<int, std::pair<int64_t, int64_t>> cleared;  // replica → rounds of its names, removals that may go
  std::set<std::string> run_folders;
  std::set<std::string> kinds;  // of units that it has had a part in

  std::string text() const;
};

std::optional<Statement> parse_statement(const std::string& text);

}  // namespace falcon
