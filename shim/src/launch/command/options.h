// Parses the command line of `falcon-launch run`.
#pragma once

#include <cstdint>
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
  std::string store;             // of checkpoints in the pod's memory; empty: none
  std::string directory;         // in memory, and copied behind; empty: none
  std::string directory_folder;  // where it is copied to
  std::string directory_owner;   // the job's uid
  int64_t directory_bytes = 0;
  int64_t directory_bytes_per_second = 0;  // 0: no limit
  std::vector<std::string> command;
};

}  // namespace falcon
