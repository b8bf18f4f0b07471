#include "command/environment.h"

#include <unistd.h>

#include <utility>

extern char** environ;

namespace falcon {
namespace {

std::string text(int value) { return std::to_string(value); }

// torchrun reads its options from PET_*; the static rendezvous keeps the plan's node ranks.
void add_launcher(const Plan& plan, const std::string& run_id, Variables* set) {
  (*set)["PET_NNODES"] = text(plan.nnodes);
  (*set)["PET_NPROC_PER_NODE"] = text(plan.procs);
  (*set)["PET_NODE_RANK"] = text(plan.node_rank);
  (*set)["PET_MASTER_ADDR"] = plan.master_addr;
  (*set)["PET_MASTER_PORT"] = text(plan.master_port);
  (*set)["PET_RDZV_BACKEND"] = "static";
  (*set)["PET_RDZV_ENDPOINT"] = plan.master_addr + ":" + text(plan.master_port);
  (*set)["PET_RDZV_ID"] = run_id;
}

void add_rank(const Plan& plan, const std::string& run_id, int local_rank, Variables* set) {
  const std::string rank = text(plan.first_rank + local_rank);
  (*set)["RANK"] = rank;
  (*set)["LOCAL_RANK"] = text(local_rank);
  (*set)["WORLD_SIZE"] = text(plan.world_size);
  (*set)["LOCAL_WORLD_SIZE"] = text(plan.procs);
  (*set)["GROUP_RANK"] = text(plan.node_rank);
  (*set)["GROUP_WORLD_SIZE"] = text(plan.nnodes);
  (*set)["ROLE_RANK"] = rank;
  (*set)["ROLE_WORLD_SIZE"] = text(plan.world_size);
  (*set)["ROLE_NAME"] = "default";
  (*set)["TORCHELASTIC_RUN_ID"] = run_id;
  (*set)["TORCHELASTIC_RESTART_COUNT"] = text(plan.generation - 1);
  (*set)["TORCHELASTIC_USE_AGENT_STORE"] = "False";          // rank 0 serves the store
  if (plan.procs > 1) set->emplace("OMP_NUM_THREADS", "1");  // as torchrun does
}

}  // namespace

Variables own_environment() {
  Variables found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const size_t equals = variable.find('=');
    if (equals != std::string::npos) found[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return found;
}

Variables rank_environment(Variables base, const Options& options, const Plan& plan, int local_rank, Additions ours) {
  Variables set = std::move(base);
  const std::string run_id = "falcon-g" + text(plan.generation);
  set["MASTER_ADDR"] = plan.master_addr;
  set["MASTER_PORT"] = text(plan.master_port);
  set["FALCON_GENERATION"] = text(plan.generation);
  set["FALCON_RING_DIR"] = options.run_dir + "/launch/rings";
  set["FALCON_CONTROL"] = options.run_dir + "/agent/control";
  set["FALCON_RETRIES"] = text(plan.retries);
  if (options.own) {
    add_launcher(plan, run_id, &set);
  } else {
    add_rank(plan, run_id, local_rank, &set);
  }
  if (ours.preload) {
    const std::string others = set["LD_PRELOAD"];
    set["LD_PRELOAD"] = (others.empty() ? "" : others + ":") + options.shim;
    // AddressSanitizer's runtime refuses to start where any library comes before it, and a program that is linked with
    // it has it after every preloaded one. Ours replaces no function that the runtime does. The user's own word counts.
    const std::string sanitizer = set["ASAN_OPTIONS"];
    set["ASAN_OPTIONS"] = "verify_asan_link_order=0" + (sanitizer.empty() ? "" : ":" + sanitizer);
  }
  if (ours.python) {
    const std::string others = set["PYTHONPATH"];
    set["PYTHONPATH"] = options.python + "/falcon_site" + (others.empty() ? "" : ":" + others) + ":" + options.python;
    set["FALCON_STACKS"] = options.run_dir + "/launch/stacks";
    if (plan.standby != Standby::kNone && !options.own) {
      set["FALCON_IMPORTS"] = options.run_dir + "/launch/standby/imports." + text(local_rank);
    }
  }
  return set;
}

std::vector<std::string> joined(const Variables& variables) {
  std::vector<std::string> lines;
  lines.reserve(variables.size());
  for (const auto& [key, value] : variables) {
    std::string line = key;
    line += '=';
    line += value;
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace falcon
