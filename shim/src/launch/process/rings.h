// Finds which of the rings in the run directory are the ranks' own.
//
// A helper that a rank starts (a process that writes checkpoints, an evaluator) has the rank's environment, so that its
// collectives make a ring under the rank's number. And after a restart by torchrun the rings of dead workers lie beside
// those of the workers that live. Here the agent learns which one of them is the rank's.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "process/processes.h"

namespace falcon {

struct RingFile {
  std::string name;
  int rank = -1;  // -1: the writer's environment does not say
  pid_t pid = 0;
};

class Rings {
 public:
  // A new generation: `count` ranks from `first_rank` on.
  void begin(int generation, int first_rank, int count);

  // Chooses among `files`. A rank's own process is the living one that is nearest to what we started (`started`), of
  // several as near the first. A dead rank's ring stays its own until another process of what we started has taken its
  // place: a helper that outlives the rank has not.
  void choose(const std::vector<std::string>& files, const std::vector<Process>& processes,
              const std::vector<pid_t>& started);

  const std::vector<RingFile>& own() const { return own_; }

  // Files of dead processes whose place another process has taken.
  const std::vector<std::string>& superseded() const { return superseded_; }

 private:
  bool parse(const std::string& name, RingFile* file) const;

  int generation_ = 0;
  int first_rank_ = 0;
  int count_ = 0;
  std::vector<RingFile> own_;
  std::vector<std::string> superseded_;
};

}  // namespace falcon
