// Starts and watches the training processes of one generation, and kills them with everything below them.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "command/environment.h"
#include "command/options.h"
#include "common/clock.h"
#include "folder/directory.h"
#include "measurement/check.h"
#include "measurement/links.h"
#include "measurement/smoke.h"
#include "output/output.h"
#include "process/oom.h"
#include "process/rings.h"
#include "process/schedules.h"
#include "process/signal_routing.h"
#include "rescue/rescuer.h"
#include "standby/standbys.h"
#include "wire/plan.h"
#include "wire/report.h"

namespace falcon {

class Ranks {
 public:
  Ranks(const Options& options, Output* output)
      : options_(options),
        output_(output),
        standbys_(options, output),
        check_(options),
        smoke_(options),
        links_(options),
        directory_(options),
        rescuer_(options.store) {}

  // Starts every process of the plan. An error text where the command cannot be executed.
  std::string start(const Plan& plan);

  // Forgets the processes of the generation before, where those of this one cannot be started.
  void forget() { reports_.clear(); }

  // Reaps what has ended; the local ranks among it.
  std::vector<int> reap();

  // Each second: what the cgroup counted.
  void note(const CgroupCounters& counters) { oom_.note(counters.oom_kills, monotonic_ns()); }

  // Every few seconds, since it takes a while with thousands of threads: how the ranks' threads fare.
  std::vector<RankSchedule> sample();

  // Looks at the rings anew; true if other rings than before are the ranks' own. Removes those of dead processes whose
  // place another process has taken.
  bool choose_rings();
  const std::vector<RingFile>& rings() const { return rings_.own(); }

  // The processes that train, as far as they are known by their rings; else those that we started.
  std::vector<pid_t> own_processes() const;

  // A signal that came from outside goes to the programs that take it.
  void forward(int number);

  // Asks the ranks to end. `urgent`: what ended ranks have left is not left to work on undisturbed.
  void stop(const StopTerms& terms, bool urgent);

  // The next step of the ranks' end, and of what ended ranks have left; true while a process still has time.
  bool await_ends();

  // The same while ranks run, as often as it matters.
  void look_at_survivors();

  // SIGKILL to every descendant of this launcher, but for standbys; true when none is left.
  bool kill_all();

  bool running() const;

  // Makes standbys for the next generation, as the plan of the running one wants.
  void look_at_standbys(const Plan& plan);
  Standbys& standbys() { return standbys_; }
  const Standbys& standbys() const { return standbys_; }
  Check& check() { return check_; }
  Smoke& smoke() { return smoke_; }
  Links& links() { return links_; }
  Directory& directory() { return directory_; }
  const Directory& directory() const { return directory_; }
  Rescuer& rescuer() { return rescuer_; }

  // Whether one has failed; whether all have ended with code 0.
  bool failed() const;
  bool ended_well() const;

  // Whether the programs of all have ended with code 0, though shells above them died of the signal to end: they have
  // written all that they had to write.
  bool programs_ended_well() const;

  // Why no rank is tracked; empty where the shim is there.
  const std::string& untracked() const { return untracked_; }
  const std::vector<RankReport>& reports() const { return reports_; }

  // OOM kills in the container since this generation began.
  Counter oom_kills() const { return oom_.count(); }

  // OOM kills in the container before this generation began.
  Counter oom_kills_before() const { return oom_.before(); }

 private:
  std::string spawn(const Plan& plan, int local_rank);
  void add_report(const Plan& plan, int local_rank, pid_t pid);
  bool whole_lines(const Plan& plan) const;
  std::set<pid_t> kept_pids() const;  // standbys, and Falcon's own processes that outlive the ranks
  ProcessTree tree() const;
  void judge_programs();
  void judge_end(RankReport* report, int status);
  std::string rings_folder() const { return options_.run_dir + "/launch/rings"; }

  const Options& options_;
  Output* output_;
  std::string untracked_;
  Additions ours_;
  bool judged_ = false;  // what is ours in the processes that we start
  Standbys standbys_;
  Check check_;
  Smoke smoke_;
  Links links_;
  Directory directory_;
  Rescuer rescuer_;
  std::vector<RankReport> reports_;
  Schedules schedules_;
  OomKills oom_;
  Rings rings_;
  int first_rank_ = 0;
  SignalRouting routing_;
  bool any_ended_ = false;         // of this generation
  int64_t next_survivors_ns_ = 0;  // when what ended ranks have left is looked at again
};

}  // namespace falcon
