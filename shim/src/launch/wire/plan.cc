#include "wire/plan.h"

#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>

namespace falcon {
namespace {

constexpr int kVersion = 1;
constexpr int kMostRetries = 10;
constexpr int kMostCheckMs = 60'000;

using Fields = std::map<std::string, std::string>;

Fields split(const std::string& text) {
  Fields fields;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) fields[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return fields;
}

// Reads whole numbers and remembers the first that is none, or is out of its range.
class Numbers {
 public:
  explicit Numbers(const Fields& fields) : fields_(fields) {}

  // A field that an older agent does not write has its fallback.
  int get(const char* key, int least, int most, int fallback) {
    return fields_.count(key) == 0 ? fallback : get(key, least, most);
  }

  int get(const char* key, int least, int most) {
    const auto found = fields_.find(key);
    const std::string text = found == fields_.end() ? "" : found->second;
    char* end = nullptr;
    const long value = strtol(text.c_str(), &end, 10);
    if (!text.empty() && *end == '\0' && value >= least && value <= most) return static_cast<int>(value);
    if (error_.empty()) {
      error_ = std::string(key) + " is '" + text + "', want a number from " + std::to_string(least) + " to " +
               std::to_string(most);
    }
    return least;
  }

  const std::string& error() const { return error_; }

 private:
  const Fields& fields_;
  std::string error_;
};

std::optional<Phase> phase_of(const std::string& text) {
  if (text == "Run") return Phase::kRun;
  if (text == "Stop") return Phase::kStop;
  if (text == "Finish") return Phase::kFinish;
  return std::nullopt;
}

// What we do not know is left out: a start is cold then.
Standby standby_of(const std::string& text) {
  if (text == "Imports") return Standby::kImports;
  if (text == "Processes") return Standby::kProcesses;
  return Standby::kNone;
}

}  // namespace

std::optional<Plan> parse_plan(const std::string& text, std::string* error) {
  Fields fields = split(text);
  Numbers numbers(fields);
  Plan plan;
  numbers.get("version", kVersion, kVersion);
  plan.generation = numbers.get("generation", 1, INT32_MAX);
  const std::optional<Phase> phase = phase_of(fields["phase"]);
  plan.phase = phase.value_or(Phase::kStop);
  if (phase == Phase::kRun) {
    plan.world_size = numbers.get("world_size", 1, INT32_MAX);
    plan.nnodes = numbers.get("nnodes", 1, INT32_MAX);
    plan.node_rank = numbers.get("node_rank", 0, plan.nnodes - 1);
    plan.procs = numbers.get("procs", 0, INT32_MAX);
    plan.first_rank = numbers.get("first_rank", 0, plan.world_size - 1);
    plan.master_addr = fields["master_addr"];
    plan.master_port = numbers.get("master_port", 1, 65535);
    plan.retries = numbers.get("retries", 0, kMostRetries, 0);
    plan.standby = standby_of(fields["standby"]);
    plan.next_master_port = numbers.get("next_master_port", 0, 65535, 0);
    plan.links = numbers.get("links", 0, INT32_MAX, 0);
    plan.settled = numbers.get("settled", 0, 1, 0) == 1;
  } else if (phase == Phase::kStop) {
    plan.procs = numbers.get("procs", 0, INT32_MAX, 0);
    plan.standby = standby_of(fields["standby"]);
    plan.check = numbers.get("check", 0, INT32_MAX, 0);
    plan.check_ms = numbers.get("check_ms", 0, kMostCheckMs, 0);
    plan.check_links = numbers.get("check_links", 0, 1, 0) == 1;
  } else if (phase == Phase::kFinish) {
    plan.exit_code = numbers.get("exit_code", 0, 255);
  }
  if (phase != Phase::kFinish) plan.smoke = numbers.get("smoke", 0, INT32_MAX, 0);
  *error = numbers.error();
  if (error->empty() && !phase) *error = "phase is '" + fields["phase"] + "', want Run, Stop or Finish";
  return error->empty() ? std::optional<Plan>(plan) : std::nullopt;
}

}  // namespace falcon
