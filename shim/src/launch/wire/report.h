// Writes the launcher's report to the agent, as JSON (core/falcon_core/wire/launcher/launch.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "process/counters.h"
#include "process/open_files.h"
#include "process/rings.h"
#include "process/schedules.h"
#include "process/volumes.h"

namespace falcon {

struct RankReport {
  int local_rank = 0;
  int rank = 0;
  pid_t pid = 0;
  bool running = false;
  std::optional<int> exit_code;
  std::optional<int> signal;
  bool core_dumped = false;
  bool oom_killed = false;
  int64_t started_unix_ns = 0;
  std::optional<int64_t> ended_unix_ns;
  int64_t ended_ns = 0;  // monotonic; not reported
  std::optional<int64_t> blocked_since_unix_ns;
};

// Interpreters that wait for the next generation.
struct StandbyReport {
  int ready = 0;
  int wanted = 0;
  std::string why;  // why there are fewer, or why they have imported less; empty: as far as is known nothing is missing
};

// What the benchmark executor did; what it printed stands in launch/check.
struct CheckReport {
  int number = 0;  // the plan's
  bool running = false;
  std::string error;        // why nothing was measured; empty: it was
  bool linking = false;     // the executor of the links lives; what it has found stands in launch/links
  std::string links_error;  // why there is none, or how it failed
};

struct StatusReport {
  int generation = 0;
  int dead_below = 0;
  std::string state = "Idle";
  std::string untracked;  // empty: tracked
  bool stuck = false;
  std::string error;  // empty: none
  Counter oom_kills;
  Counter oom_kills_before;
  std::optional<StandbyReport> standby;  // nothing: none are wanted
  CheckReport check;
  CheckReport smoke;  // it has no links
  CheckReport links;  // that are measured beside the ranks: the executor, and how it ended
  std::vector<RankReport> ranks;
};

struct RankSchedule {
  int local_rank = 0;
  std::optional<Schedule> schedule;  // nothing: unknown
  std::optional<OpenFiles> open_files;
};

// The newest reading of the ranks' threads.
struct RankSchedules {
  int64_t unix_ns = 0;
  std::vector<RankSchedule> ranks;
};

// A JSON string. Bytes that are no ASCII are kept as they are.
std::string quoted(const std::string& text);

std::string status_json(const StatusReport& status);
std::string counters_json(int64_t unix_ns, const CgroupCounters& cgroup, const RankSchedules& schedules,
                          const std::vector<Volume>& volumes);
std::string rings_json(const std::vector<RingFile>& own);

}  // namespace falcon
