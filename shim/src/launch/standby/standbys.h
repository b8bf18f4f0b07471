// Keeps interpreters that wait next to the ranks, with the last generation's packages imported
// (agent/falcon_start/standby.py). They wait before their program, or in it, where it would meet the other ranks
// (shim/src/shim/sockets/hold.h).
//
// One for each rank, started one after the other once training has settled, and held to a fifth of a core until it is
// ready. In a pod that has no ranks and may get some, they import what the agent says that the job's ranks import, at
// once and unhindered. A standby is no rank: it has no report, no ring and no output until it is released as one.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "command/environment.h"
#include "command/options.h"
#include "output/output.h"
#include "wire/plan.h"
#include "wire/report.h"

namespace falcon {

class Standbys {
 public:
  Standbys(const Options& options, Output* output) : options_(options), output_(output) {}
  ~Standbys() { end(); }
  Standbys(const Standbys&) = delete;
  Standbys& operator=(const Standbys&) = delete;

  // Takes the next step towards what the plan wants. `ranks`: the running generation's processes, by local rank; none
  // in a pod that has no ranks.
  void look(const Plan& plan, const Additions& ours, const std::vector<pid_t>& ranks);

  // A generation begins: hands over the processes, by local rank, that are its ranks from now on, and ends all others.
  // One that does not answer at once is ended before it has run a line of the program.
  std::map<int, pid_t> release(const Plan& plan, const Additions& ours, bool whole_lines);

  // A process has ended; true if it was a standby, also one that was of no use any more: the kernel may have killed it
  // for memory just before.
  bool ended(pid_t pid);

  // SIGKILL to all.
  void end();

  std::set<pid_t> pids() const;
  bool importing() const;

  // Nothing where none are wanted.
  const std::optional<StandbyReport>& report() const { return report_; }

 private:
  struct Held {
    pid_t pid = -1;
    int socket = -1;
    Output::Ends output;    // read ends; what the imports print waits in the pipes
    Variables environment;  // that it was started with
    std::string heard;
    std::string note;
    bool program = false;  // it waits in its program, in the environment that the next generation should have
    bool ready = false;
    bool stopped = false;
    int64_t since_ns = 0;
    int64_t looked_ns = 0;
    int64_t allowed_ns = 0;  // CPU time, by then
  };

  std::string refusal(const Additions& ours, const std::vector<pid_t>& ranks) const;
  std::string imports_path(int local_rank) const;
  void judge_program(const Plan& plan, const Additions& ours);
  void hear();
  bool hear(Held* held);
  bool take(Held* held, const std::string& line);
  void restrain(int64_t now_ns);
  bool memory_allows(int64_t now_ns);
  void start(const Plan& plan, const Additions& ours, int local_rank);
  void fail(const std::string& why);
  void drop(Held* held);
  bool send(Held* held, const Plan& plan, const Additions& ours, int local_rank) const;
  bool may_be_niced();
  void tell(int wanted);

  const Options& options_;
  Output* output_;
  std::map<int, Held> held_;   // by local rank
  std::set<pid_t> dropped_;    // that were killed and have yet to end
  std::optional<bool> niced_;  // whether they run at the lowest priority; nothing: not yet tried
  std::optional<StandbyReport> report_;
  std::string refusal_;  // of this generation
  std::string instead_;  // why none waits in its program in this generation
  std::string failure_;
  int failures_ = 0;
  int64_t not_before_ns_ = 0;
  int64_t memory_looked_ns_ = 0;
  bool memory_allows_ = true;
};

}  // namespace falcon
