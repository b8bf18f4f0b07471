// Compares the agent's plan with what runs, and starts or ends processes until both agree.
#pragma once

#include <string>

#include "common/clock.h"
#include "generation/heartbeat.h"
#include "generation/ranks.h"
#include "output/output.h"
#include "wire/plan.h"
#include "wire/report.h"

namespace falcon {

// Blocks the signals that the supervisor reads; before it is made, since its threads inherit the mask.
void block_signals();

class Supervisor {
 public:
  explicit Supervisor(const Options& options)
      : options_(options), output_(options.run_dir + "/launch"), ranks_(options, &output_) {}

  // Until the plan says Finish, a signal ends us, or the ranks have ended and the agent is gone. The exit code.
  int run();

 private:
  void watch_for_plans();
  int pause_ms() const;
  void collect();
  void look_at_agent();
  void look_at_plan();
  void advance();
  StopTerms pod_terms(int number) const;
  bool is_saved(int64_t since_ns);
  void begin_stop();
  void finish_stop();
  void fill_and_start();
  void start(const std::string& hindrance);
  void on_signal(int number);
  void look_at_stacks();
  void look_at_standbys();
  void publish_status();
  void publish_counters();
  void publish_rings();
  int own_exit_code() const;
  std::string path(const char* name) const { return options_.run_dir + "/" + name; }

  const Options& options_;
  Output output_;
  Ranks ranks_;
  Plan plan_;
  StatusReport status_;
  std::string plan_text_;
  std::string stacks_asked_;
  std::string samples_asked_;
  std::string published_;
  std::string plan_error_;
  std::string start_error_;
  bool stopping_ = false;
  bool started_ = false;  // the current plan's processes have been started
  int plans_ = -1;        // inotify: says that the agent wrote
  bool plans_watched_ = false;
  int rings_ = -1;  // inotify: says that a rank made a ring
  RankSchedules schedules_;
  Volumes volumes_;
  int64_t last_sample_ns_ = 0;
  Heartbeat agent_{monotonic_ns()};
  bool agent_gone_ = false;
  int64_t stop_since_ns_ = 0;
  int64_t killing_since_ns_ = 0;
  int64_t last_second_ns_ = 0;
  int64_t ended_since_ns_ = 0;
  int terminated_by_ = 0;
  bool ended_before_signal_ = false;  // all ranks of the current plan, before the signal that ends the pod
  bool done_ = false;
  int exit_code_ = 0;
};

}  // namespace falcon
