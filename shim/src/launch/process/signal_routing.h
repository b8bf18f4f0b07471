// Decides which processes of a pod get a signal, and how long the launcher waits for each. No I/O, no clock.
//
// A signal goes to programs, not to process groups: the data loader workers of a program that saves must live until it
// has saved. In each branch of the tree a signal goes down to the topmost process that takes it, never below: that
// process decides for what is below it. What is left when a rank has ended is signalled as its own branches.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "process/processes.h"

namespace falcon {

struct Member {
  Process process;
  Dispositions signals;
  std::string program;  // its path; empty where it does not matter (process_tree.h)
};

// The process of a rank that falcon-launch started.
struct RankRoot {
  pid_t pid = 0;
  bool running = false;
  bool well = false;     // it has ended with code 0
  int64_t ended_ns = 0;  // monotonic
};

struct ProcessTree {
  pid_t launcher = 0;
  std::vector<RankRoot> ranks;
  std::vector<Member> members;  // what is below the launcher, without Falcon's own processes and standbys
};

// One signal to one process.
struct Delivery {
  pid_t pid = 0;
  int number = 0;
  bool ends_first = false;  // the process dies of the signal, and has to be dead before a program below it gets its own

  bool operator==(const Delivery& other) const { return pid == other.pid && number == other.number; }
};

// For how long ranks that were asked to end are waited for, from the beginning of the stop [ns].
struct StopTerms {
  int number = 0;            // the signal
  int64_t taken_ns = 0;      // those that take it
  int64_t not_taken_ns = 0;  // those that neither take it nor die of it
  bool planned = true;       // by a plan; else by a signal from outside
};

struct Routed {
  std::vector<Delivery> deliveries;
  bool waits = false;  // for a process that still has time
};

class SignalRouting {
 public:
  // What a rank left behind has so much time after its first signal, if it takes it.
  static constexpr int64_t kSurvivorNs = 5000000000;
  // What a rank that ended with 0 left behind may work for so long before its first signal.
  static constexpr int64_t kUndisturbedNs = 10000000000;
  // For those that ignore a signal: helpers that end by themselves when their program is gone.
  static constexpr int64_t kIgnoringNs = 250000000;
  // For a process whose death by the signal takes a while.
  static constexpr int64_t kDyingNs = 1000000000;
  // For all processes together that end first, before the others get their signals.
  static constexpr int64_t kEndNs = 1000000000;

  // Forgets the processes of the generation before.
  void begin();

  // A signal that came from outside, to the ranks that run. One that ends programs is not repeated to those that have
  // it from the stop of a plan.
  std::vector<Delivery> forward(const ProcessTree& tree, int number);

  // The ranks are asked to end; `deliveries` of `look` carry it out. `urgent`: nothing of an ended rank is left to work
  // on undisturbed.
  std::vector<Delivery> stop(const ProcessTree& tree, const StopTerms& terms, bool urgent, int64_t now_ns);

  // The next step: signals for what ended ranks have left, SIGKILL for those of it whose time is over.
  Routed look(const ProcessTree& tree, int64_t now_ns);

  // A process that the launcher had adopted has ended: with code 0 (`well`), or of a signal (`killed`).
  void note_end(pid_t pid, bool well, bool killed);

  // Whether what ran below a rank's first process took the signal to end, and has ended with code 0: a shell dies of a
  // signal that its trainer takes. False where something else that a rank had left was killed: it may have been
  // writing.
  bool programs_ended_well(pid_t rank) const;

  // Whether such a signal asks a program to end.
  static bool is_ending(int number);

 private:
  using Life = std::pair<pid_t, uint64_t>;

  enum class Origin { kRank, kSurvivor };

  struct Signalled {
    int number = 0;
    Origin origin = Origin::kRank;
    bool takes = false;  // it did when it was signalled; a handler may be removed since
    bool ignores = false;
    bool planned = false;  // by a stop, not from outside
    bool ended = false;    // and the launcher has its exit code
    bool well = false;     // which was 0
    pid_t rank = 0;        // the first process of its branch
    int64_t at_ns = 0;
    int64_t until_ns = 0;  // of a survivor
  };

  class Look;

  void route(const Look& look, const Member& top, int number, Origin origin, bool planned, int64_t now_ns,
             std::vector<Delivery>* deliveries);
  void deliver(const Member& member, pid_t rank, int number, Origin origin, bool planned, int64_t now_ns,
               std::vector<Delivery>* deliveries);
  void signal_survivors(const Look& look, int64_t now_ns, Routed* routed);
  bool is_due(const Look& look, const Member& head, int64_t now_ns, bool* waits) const;
  bool has_time(const Member& member, const Signalled& signalled, int64_t now_ns) const;
  const Signalled* signalled(const Member& member) const;

  std::map<Life, Signalled> signalled_;
  StopTerms terms_;
  bool stopping_ = false;
  bool urgent_ = false;
  bool any_cut_off_ = false;  // of what ranks had left
  int64_t stop_ns_ = 0;
  std::map<pid_t, int64_t> first_survivor_ns_;  // by rank (0: unknown): when the first of what it left was signalled
};

}  // namespace falcon
