// Builds the environment of a training process: what torchrun would set, and what the shim reads.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "command/options.h"
#include "wire/plan.h"

namespace falcon {

using Variables = std::map<std::string, std::string>;

// This process's own environment.
Variables own_environment();

// What of ours goes into a rank's process.
struct Additions {
  bool preload = false;  // our library, after those that the container preloads itself
  bool python = false;   // our folders, first and last where its interpreter looks for modules
};

// `base` with the variables of one rank, or, under `own`, of the launcher that the command is.
Variables rank_environment(Variables base, const Options& options, const Plan& plan, int local_rank, Additions ours);

// "KEY=value" lines for execve.
std::vector<std::string> joined(const Variables& variables);

}  // namespace falcon
