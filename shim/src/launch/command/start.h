// Starts a process of the user's command: in a process group of its own, dying with this launcher.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "command/environment.h"
#include "output/output.h"

namespace falcon {

struct Started {
  pid_t pid = -1;
  std::string error;  // empty: it runs
};

// `prepare`: what the new process does at last before the command, between fork and exec.
Started start_command(const std::vector<std::string>& command, const Variables& environment, const Output::Ends& ends,
                      const std::function<void()>& prepare);

// How a process failed that has ended with this status; empty where it ended with 0.
std::string failure_of(int status);

}  // namespace falcon
