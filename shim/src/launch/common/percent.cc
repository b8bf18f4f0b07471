#include "common/percent.h"

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace falcon {
namespace {

bool is_plain(char c) { return isalnum(static_cast<unsigned char>(c)) != 0 || strchr("._/=-", c) != nullptr; }

// FNV-1a.
uint64_t fnv(uint64_t hash, const std::string& text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace

std::string percent_encoded(const std::string& text) {
  if (text.empty()) return "%";
  std::string word;
  for (const char c : text) {
    if (c != '\0' && is_plain(c)) {
      word += c;
    } else {
      char coded[4];
      snprintf(coded, sizeof(coded), "%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
      word += coded;
    }
  }
  return word;
}

std::string percent_decoded(const std::string& word) {
  std::string text;
  for (size_t at = 0; at < word.size(); ++at) {
    if (word[at] != '%') {
      text += word[at];
    } else if (at + 2 < word.size()) {
      text += static_cast<char>(strtoul(word.substr(at + 1, 2).c_str(), nullptr, 16));
      at += 2;
    }
  }
  return text;
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(percent_decoded(word));
  return words;
}

std::string digest_of(const std::string& path) {
  char name[33];
  snprintf(name, sizeof(name), "%016llx%016llx", static_cast<unsigned long long>(fnv(14695981039346656037ULL, path)),
           static_cast<unsigned long long>(fnv(1099511628211ULL, path + "/")));
  return name;
}

}  // namespace falcon
