// The training processes of one generation: started, watched, killed with everything below them.
#pragma once

#include <string>
#include <vector>

#include "options.h"
#include "output.h"
#include "plan.h"
#include "report.h"

namespace falcon {

class Ranks {
 public:
  Ranks(const Options& options, Output* output) : options_(options), output_(output) {}

  // Starts every process of the plan. An error text where the command cannot be executed.
  std::string start(const Plan& plan);

  // Reaps what has ended; the local ranks among it.
  std::vector<int> reap();

  // Each second: remembers how many OOM kills the cgroup has seen.
  void note(const CgroupCounters& counters);

  // To every rank's process group.
  void signal(int number);

  // SIGKILL to every descendant of this launcher; true when none is left.
  bool kill_all();

  bool running() const;
  const std::string& untracked() const { return untracked_; }
  const std::vector<RankReport>& reports() const { return reports_; }
  std::vector<RankSchedule> schedules();

 private:
  std::string spawn(const Plan& plan, int local_rank);
  std::string reason_untracked() const;

  const Options& options_;
  Output* output_;
  std::string untracked_;
  std::vector<RankReport> reports_;
  Schedules schedules_;
  int64_t oom_kills_ = 0;         // at the last note
  int64_t oom_kills_before_ = 0;  // at the one before: the kill may be older than the last note, the reaping newer
};

}  // namespace falcon
