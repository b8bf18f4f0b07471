// Encodes the words of a line that is split at blanks: every other byte as %XX, the empty word as %.
#pragma once

#include <string>
#include <vector>

namespace falcon {

std::string percent_encoded(const std::string& text);
std::string percent_decoded(const std::string& word);

// The words of a line, decoded.
std::vector<std::string> words_of(const std::string& line);

// A short name for a path of any length: it is the same in all replicas.
std::string digest_of(const std::string& path);

}  // namespace falcon
