// What the command line of `falcon-launch run` says.
#pragma once

#include <string>
#include <vector>

namespace falcon {

struct Options {
  std::string run_dir = "/falcon/run";
  std::string shim;
  std::string python;      // folder for the ranks' interpreters; empty: none
  bool own = false;        // the command is a launcher itself: run once
  int procs = 1;           // where the plan names no number
  int grace_seconds = -1;  // no limit of ours
  int restart_grace_seconds = 30;
  std::vector<std::string> command;
};

}  // namespace falcon
