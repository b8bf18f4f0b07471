// Runs the process that keeps the script's folder, in memory, equal to the durable one (docs/adr/0114): it fills the
// first from the second before the ranks start, and then copies behind them what they write.
#pragma once

#include <cstdint>
#include <string>

namespace falcon {

struct BehindOptions {
  std::string memory;  // the script's folder
  std::string folder;  // the durable one
  std::string owner;   // the job's uid
  std::string status;  // a file that says how far it is, as JSON
  int64_t memory_bytes = 0;
  int64_t bytes_per_second = 0;  // while the ranks run; 0: no limit
  int generation = 0;
  int replica = 0;
  int replicas = 0;     // that save into the folder; 0: those that say so
  int ready = -1;       // a pipe: "ok", or why the folder could not be filled
  bool resume = false;  // the ranks run: nothing is filled
  int fill_seconds = 600;
  int flush_seconds = 30;
};

// Signals: SIGUSR1 says that all ranks have ended well, SIGUSR2 that one has failed. After SIGTERM it copies what is
// finished, for so long at most, and ends. The exit code: 0, or 1 where the folder could not be filled.
int keep_behind(const BehindOptions& options);

}  // namespace falcon
