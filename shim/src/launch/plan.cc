#include "plan.h"

#include <cstdlib>
#include <map>
#include <sstream>

namespace falcon {
namespace {

constexpr int kVersion = 1;

std::optional<int> number(const std::map<std::string, std::string>& fields, const char* key) {
  const auto found = fields.find(key);
  if (found == fields.end() || found->second.empty()) return std::nullopt;
  char* end = nullptr;
  const long value = strtol(found->second.c_str(), &end, 10);
  if (*end != '\0' || value < 0 || value > INT32_MAX) return std::nullopt;
  return static_cast<int>(value);
}

}  // namespace

std::optional<Plan> parse_plan(const std::string& text) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) fields[line.substr(0, equals)] = line.substr(equals + 1);
  }
  if (number(fields, "version").value_or(0) != kVersion) return std::nullopt;
  const auto generation = number(fields, "generation");
  if (!generation || *generation < 1) return std::nullopt;
  Plan plan;
  plan.generation = *generation;
  const std::string& phase = fields["phase"];
  if (phase == "Run") {
    plan.phase = Phase::kRun;
  } else if (phase == "Stop") {
    plan.phase = Phase::kStop;
  } else if (phase == "Finish") {
    plan.phase = Phase::kFinish;
  } else {
    return std::nullopt;
  }
  plan.world_size = number(fields, "world_size").value_or(0);
  plan.nnodes = number(fields, "nnodes").value_or(0);
  plan.node_rank = number(fields, "node_rank").value_or(0);
  plan.procs = number(fields, "procs").value_or(0);
  plan.first_rank = number(fields, "first_rank").value_or(0);
  plan.master_addr = fields["master_addr"];
  plan.master_port = number(fields, "master_port").value_or(0);
  plan.exit_code = number(fields, "exit_code").value_or(0);
  if (plan.phase == Phase::kRun && (plan.procs < 1 || plan.world_size < 1 || plan.master_port == 0))
    return std::nullopt;
  return plan;
}

}  // namespace falcon
