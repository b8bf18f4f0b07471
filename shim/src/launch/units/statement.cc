#include "units/statement.h"

#include <cstdlib>
#include <sstream>
#include <vector>

#include "common/percent.h"

namespace falcon {
namespace {

constexpr char kEnd[] = "end";

int64_t number_in(const std::string& word) { return strtoll(word.c_str(), nullptr, 10); }

void take(const std::vector<std::string>& words, Statement* statement) {
  const std::string& what = words[0];
  const std::string& value = words.size() > 1 ? words[1] : words[0];
  if (words.size() == 4 && what == "cleared") {
    statement->cleared[static_cast<int>(number_in(value))] = {number_in(words[2]), number_in(words[3])};
  } else if (words.size() == 3 && what == "unit") {
    statement->units[value] = number_in(words[2]);
  } else if (words.size() == 3 && what == "agreed") {
    statement->agreed[value] = words[2];
  } else if (words.size() == 3 && what == "rounds") {
    statement->names = number_in(value);
    statement->removals = number_in(words[2]);
  } else if (words.size() != 2) {
    return;
  } else if (what == "sequence") {
    statement->sequence = number_in(value);
  } else if (what == "state") {
    statement->state = value == "left"       ? Following::kLeft
                       : value == "flushing" ? Following::kFlushing
                                             : Following::kFollowing;
  } else if (what == "well") {
    statement->well = value == "yes";
  } else if (what == "naming") {
    statement->naming = value == "yes";
  } else if (what == "refused") {
    statement->refused.insert(value);
  } else if (what == "run") {
    statement->run_folders.insert(value);
  } else if (what == "kind") {
    statement->kinds.insert(value);
  }
}

}  // namespace

std::string Statement::text() const {
  std::ostringstream out;
  out << "sequence " << sequence << "\nstate "
      << (state == Following::kLeft       ? "left"
          : state == Following::kFlushing ? "flushing"
                                          : "following")
      << "\nwell " << (well ? "yes" : "no") << "\nnaming " << (naming ? "yes" : "no") << "\nrounds " << names << " "
      << removals << "\n";
  for (const auto& [unit, version] : units) out << "unit " << percent_encoded(unit) << " " << version << "\n";
  for (const auto& [unit, versions] : agreed) {
    out << "agreed " << percent_encoded(unit) << " " << percent_encoded(versions) << "\n";
  }
  for (const std::string& unit : refused) out << "refused " << percent_encoded(unit) << "\n";
  for (const auto& [replica, rounds] : cleared) {
    out << "cleared " << replica << " " << rounds.first << " " << rounds.second << "\n";
  }
  for (const std::string& folder : run_folders) out << "run " << percent_encoded(folder) << "\n";
  for (const std::string& kind : kinds) out << "kind " << percent_encoded(kind) << "\n";
  out << kEnd << "\n";
  return out.str();
}

std::optional<Statement> parse_statement(const std::string& text) {
  Statement statement;
  std::istringstream lines(text);
  bool whole = false;
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (words[0] == kEnd) whole = true;
    take(words, &statement);
  }
  return whole ? std::optional<Statement>(statement) : std::nullopt;
}

}  // namespace falcon
