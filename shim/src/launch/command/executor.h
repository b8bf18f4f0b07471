// Starts Falcon's benchmark executor (agent/falcon_bench) next to the user's command.
#pragma once

#include <string>

#include "command/environment.h"
#include "command/options.h"

namespace falcon {

// The command's own interpreter, which has the libraries that training uses; else the image's.
std::string interpreter(const Options& options);

// Our own environment, in which an interpreter finds the executor.
Variables executor_environment(const Options& options);

}  // namespace falcon
