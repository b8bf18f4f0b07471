// Reads the agent's plan: what this pod is to run (core/falcon_core/wire/launcher/launch.py).
#pragma once

#include <optional>
#include <string>

namespace falcon {

enum class Phase { kRun, kStop, kFinish };

// What waits beside each rank for the next generation.
enum class Standby {
  kNone,
  kImports,    // an interpreter, before its program
  kProcesses,  // the program, where it would meet the other ranks
};

struct Plan {
  int generation = 0;
  Phase phase = Phase::kStop;
  int world_size = 0;
  int nnodes = 0;
  int node_rank = 0;
  int procs = 0;  // 0: as the command line says
  int first_rank = 0;
  std::string master_addr;
  int master_port = 0;
  int retries = 0;                   // of a set-up call, in place
  Standby standby = Standby::kNone;  // Stop: in a pod that has no ranks and may get some
  int next_master_port = 0;          // where the next generation most likely meets; 0: unknown
  bool settled = false;              // training has settled: standbys may cost CPU time now, and all imports are known
  int check = 0;             // Stop only: the number of the measurement that is wanted before the ranks start; 0: none
  int check_ms = 0;          // under load
  bool check_links = false;  // an executor waits for the pod's peers afterwards
  int links = 0;             // Run only: the number of the measurement of links beside the ranks; 0: none
  int smoke = 0;             // not Finish: the number of the short measurement that is made beside the start; 0: none
  int exit_code = 0;
};

// Nothing for a text that is not a plan that can be carried out; `error` then names the field. Unknown keys are those
// of a newer agent.
std::optional<Plan> parse_plan(const std::string& text, std::string* error);

}  // namespace falcon
