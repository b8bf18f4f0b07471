#include "command/executor.h"

namespace falcon {

std::string interpreter(const Options& options) {
  const std::string& first = options.command[0];
  const size_t slash = first.rfind('/');
  const std::string name = slash == std::string::npos ? first : first.substr(slash + 1);
  return name.rfind("python", 0) == 0 ? first : "python3";
}

Variables executor_environment(const Options& options) {
  Variables environment = own_environment();
  const std::string others = environment["PYTHONPATH"];
  environment["PYTHONPATH"] = options.python + (others.empty() ? "" : ":" + others);
  return environment;
}

}  // namespace falcon
