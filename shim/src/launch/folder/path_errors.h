// Remembers what cannot be copied, by path: reported once on stderr, and shown as long as it holds.
#pragma once

#include <map>
#include <string>

namespace falcon {

class PathErrors {
 public:
  void note(const std::string& path, const std::string& text);
  void clear(const std::string& path) { errors_.erase(path); }

  // All errors of one source, in place of those of before.
  void replace(const std::map<std::string, std::string>& errors, std::map<std::string, std::string>* known);

  // One of them, and how many there are besides; empty without any.
  std::string text() const;
  const std::map<std::string, std::string>& all() const { return errors_; }

 private:
  std::map<std::string, std::string> errors_;
};

}  // namespace falcon
