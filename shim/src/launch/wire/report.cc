#include "wire/report.h"

#include <cstdio>

namespace falcon {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

namespace {

std::string text_or_null(const std::string& text) { return text.empty() ? "null" : quoted(text); }

template <typename T>
std::string number_or_null(const std::optional<T>& value) {
  return value ? std::to_string(*value) : "null";
}

const char* boolean(bool value) { return value ? "true" : "false"; }

std::string standby_json(const std::optional<StandbyReport>& standby) {
  if (!standby) return "null";
  return "{\"ready\":" + std::to_string(standby->ready) + ",\"wanted\":" + std::to_string(standby->wanted) +
         ",\"why\":" + quoted(standby->why) + "}";
}

std::string check_json(const CheckReport& check) {
  if (check.number == 0) return "null";
  return "{\"number\":" + std::to_string(check.number) + ",\"running\":" + boolean(check.running) +
         ",\"error\":" + quoted(check.error) + ",\"linking\":" + boolean(check.linking) +
         ",\"links_error\":" + quoted(check.links_error) + "}";
}

}  // namespace

std::string status_json(const StatusReport& status) {
  std::string out = "{\"version\":1,\"generation\":" + std::to_string(status.generation) +
                    ",\"dead_below\":" + std::to_string(status.dead_below) + ",\"state\":" + quoted(status.state) +
                    ",\"untracked\":" + text_or_null(status.untracked) + ",\"stuck\":" + boolean(status.stuck) +
                    ",\"error\":" + text_or_null(status.error) + ",\"oom_kills\":" + number_or_null(status.oom_kills) +
                    ",\"oom_kills_before\":" + number_or_null(status.oom_kills_before) +
                    ",\"standby\":" + standby_json(status.standby) + ",\"check\":" + check_json(status.check) +
                    ",\"smoke\":" + check_json(status.smoke) + ",\"links\":" + check_json(status.links) +
                    ",\"ranks\":[";
  const char* comma = "";
  for (const RankReport& rank : status.ranks) {
    out += comma;
    comma = ",";
    out += "{\"local_rank\":" + std::to_string(rank.local_rank) + ",\"rank\":" + std::to_string(rank.rank) +
           ",\"pid\":" + std::to_string(rank.pid) + ",\"state\":" + (rank.running ? "\"Running\"" : "\"Exited\"") +
           ",\"exit_code\":" + number_or_null(rank.exit_code) + ",\"signal\":" + number_or_null(rank.signal) +
           ",\"core_dumped\":" + boolean(rank.core_dumped) + ",\"oom_killed\":" + boolean(rank.oom_killed) +
           ",\"started_unix_ns\":" + std::to_string(rank.started_unix_ns) +
           ",\"ended_unix_ns\":" + number_or_null(rank.ended_unix_ns) +
           ",\"blocked_since_unix_ns\":" + number_or_null(rank.blocked_since_unix_ns) + "}";
  }
  return out + "]}\n";
}

std::string counters_json(int64_t unix_ns, const CgroupCounters& cgroup, const RankSchedules& schedules,
                          const std::vector<Volume>& volumes) {
  std::string out = "{\"version\":1,\"unix_ns\":" + std::to_string(unix_ns) +
                    ",\"cgroup\":{\"nr_periods\":" + number_or_null(cgroup.nr_periods) +
                    ",\"nr_throttled\":" + number_or_null(cgroup.nr_throttled) +
                    ",\"throttled_ns\":" + number_or_null(cgroup.throttled_ns) +
                    ",\"cpu_usage_ns\":" + number_or_null(cgroup.cpu_usage_ns) +
                    ",\"memory_bytes\":" + number_or_null(cgroup.memory_bytes) +
                    ",\"memory_limit_bytes\":" + number_or_null(cgroup.memory_limit_bytes) +
                    ",\"memory_cache_bytes\":" + number_or_null(cgroup.memory_cache_bytes) +
                    ",\"pids\":" + number_or_null(cgroup.pids) +
                    ",\"pids_limit\":" + number_or_null(cgroup.pids_limit) +
                    ",\"oom_kills\":" + number_or_null(cgroup.oom_kills) +
                    ",\"cpu_pressure_some_us\":" + number_or_null(cgroup.cpu_pressure_some_us) +
                    "},\"ranks_unix_ns\":" + std::to_string(schedules.unix_ns) + ",\"ranks\":[";
  const char* comma = "";
  for (const RankSchedule& rank : schedules.ranks) {
    const bool known = rank.schedule.has_value();
    out += comma;
    comma = ",";
    out += "{\"local_rank\":" + std::to_string(rank.local_rank) +
           ",\"cpu_ns\":" + (known ? std::to_string(rank.schedule->cpu_ns) : "null") +
           ",\"run_delay_ns\":" + (known ? std::to_string(rank.schedule->run_delay_ns) : "null") +
           ",\"open_files\":" + (rank.open_files ? std::to_string(rank.open_files->count) : "null") +
           ",\"open_files_limit\":" + (rank.open_files ? std::to_string(rank.open_files->limit) : "null") + "}";
  }
  out += "],\"volumes\":[";
  comma = "";
  for (const Volume& volume : volumes) {
    out += comma;
    comma = ",";
    out += "{\"path\":" + quoted(volume.path) + ",\"bytes\":" + std::to_string(volume.bytes) +
           ",\"limit_bytes\":" + std::to_string(volume.limit_bytes) + ",\"files\":" + std::to_string(volume.files) +
           ",\"limit_files\":" + std::to_string(volume.limit_files) + "}";
  }
  return out + "]}\n";
}

std::string rings_json(const std::vector<RingFile>& own) {
  std::string out = "{\"version\":1,\"own\":[";
  const char* comma = "";
  for (const RingFile& ring : own) {
    out += comma;
    comma = ",";
    out += quoted(ring.name);
  }
  return out + "]}\n";
}

}  // namespace falcon
