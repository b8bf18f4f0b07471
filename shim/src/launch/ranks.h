// The training processes of one generation: started, watched, killed with everything below them.
#pragma once

#include <string>
#include <vector>

#include "output.h"
#include "plan.h"
#include "report.h"

namespace falcon {

struct Options {
  std::string run_dir = "/falcon/run";
  std::string shim;
  bool own = false;  // the command is a launcher itself: run once
  int procs = 1;
  int grace_seconds = 5;
  std::vector<std::string> command;
};

class Ranks {
 public:
  Ranks(const Options& options, Output* output) : options_(options), output_(output) {}

  // Starts every process of the plan. An error text where the command cannot be executed.
  std::string start(const Plan& plan);

  // Reaps what has ended; true if a rank of ours was among it.
  bool reap();

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
  std::vector<std::string> environment(const Plan& plan, int local_rank) const;

  const Options& options_;
  Output* output_;
  std::string untracked_;
  std::vector<RankReport> reports_;
  Schedules schedules_;
  int64_t oom_kills_ = 0;
};

int64_t unix_ns();

}  // namespace falcon
