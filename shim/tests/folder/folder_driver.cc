// folder_driver: replicas of a folder in memory on real files, under a clock that moves only when it is told to. One
// command a line, one line of JSON back. Words are percent-encoded (percent.h).
//
//   start R MEMORY DURABLE [KEY=VALUE …]  begin replica R: take over, roll forward, fill. Keys: owner, generation,
//                                         replicas, memory_bytes, resume=yes|no, resolve=openat2|walk,
//                                         exchange=yes|no, links=yes|no
//   open R [PATH …]                       R's files that are open for writing from now on
//   gone R                                a process has ended since R's last round
//   fail R / well R                       a rank has failed / all have ended with code 0
//   round R                               one round; its answer says what is left
//   flush R [SECONDS]                     the ranks are dead: rounds of the flush follow
//   advance SECONDS                       the clock of all
//   crash R                               R dies: nothing is cleaned up
//   crash_at R N                          R dies instead of its N-th change of the durable folder; 0: it does not
//   quit
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/percent.h"
#include "folder/copy.h"
#include "wire/report.h"

namespace {

struct Killed : std::exception {};

int64_t clock_ns = 1000 * falcon::kSecondNs;

// One replica, and what it is to see.
struct Replica {
  std::unique_ptr<falcon::FolderCopy> copy;
  std::set<std::string> open;
  bool gone = false;
  bool flushing = false;
  int64_t flush_until_ns = 0;
  int64_t changes_left = 0;  // until it dies; 0: it does not

  void before_change() {
    if (changes_left == 0) return;
    --changes_left;
    if (changes_left == 0) throw Killed();
  }
};

std::map<int, Replica> replicas;

falcon::Surroundings surroundings(Replica* replica) {
  falcon::Surroundings given;
  given.now_ns = [] { return clock_ns; };
  given.pause = [](int64_t ns) { clock_ns += ns; };
  given.writing = [replica] { return replica->open; };
  given.somebody_gone = [replica] {
    const bool gone = replica->gone;
    replica->gone = false;
    return gone;
  };
  given.ends_as_whole = [](const std::string&) { return false; };
  given.progress = [replica](int64_t) { return !replica->flushing || clock_ns < replica->flush_until_ns; };
  given.goes_on = [] { return true; };
  given.in_time = [] { return true; };
  return given;
}

std::string start(const std::vector<std::string>& words) {
  const int number = atoi(words.at(1).c_str());
  Replica& replica = replicas[number] = Replica();
  falcon::CopyOptions options;
  options.memory = words.at(2);
  options.folder = words.at(3);
  options.owner = "uid-1";
  options.generation = 1;
  options.replica = number;
  options.memory_bytes = 1 << 30;
  bool resume = false;
  for (size_t at = 4; at < words.size(); ++at) {
    const size_t equal = words[at].find('=');
    const std::string key = words[at].substr(0, equal);
    const std::string value = words[at].substr(equal + 1);
    if (key == "owner") options.owner = value;
    if (key == "generation") options.generation = atoi(value.c_str());
    if (key == "replicas") options.replicas = atoi(value.c_str());
    if (key == "memory_bytes") options.memory_bytes = atoll(value.c_str());
    if (key == "resume") resume = value == "yes";
    if (key == "resolve") options.folder_limits.walk = options.memory_limits.walk = value == "walk";
    if (key == "exchange") options.folder_limits.exchange = value == "yes";
    if (key == "links") options.folder_limits.hard_links = value == "yes";
  }
  options.folder_limits.before_change = [held = &replica] { held->before_change(); };
  replica.copy = std::make_unique<falcon::FolderCopy>(options, surroundings(&replica));
  const std::string error = replica.copy->begin(resume);
  return std::string("{\"ok\":") + (error.empty() ? "true" : "false") + ",\"error\":" + falcon::quoted(error) + "}";
}

std::string round(Replica* replica) {
  const falcon::Round done = replica->copy->round();
  const falcon::WriteBack& back = replica->copy->back();
  if (done.looked && !done.more && !replica->flushing) replica->copy->make_room();
  const bool settled = done.looked && !done.more && !done.waiting && !done.failing;
  const bool over = replica->flushing && (settled || replica->copy->is_lost() || clock_ns >= replica->flush_until_ns);
  if (over) replica->copy->leave();
  const falcon::Backlog backlog = back.backlog();
  return "{\"files\":" + std::to_string(backlog.files) + ",\"bytes\":" + std::to_string(backlog.bytes) +
         ",\"links\":" + std::to_string(back.links()) + ",\"newest\":" + falcon::quoted(back.newest().first) +
         ",\"error\":" + falcon::quoted(replica->copy->error()) +
         ",\"given_up\":" + std::to_string(over ? backlog.files : 0) + ",\"more\":" + (done.more ? "true" : "false") +
         ",\"waiting\":" + (done.waiting ? "true" : "false") + ",\"over\":" + (over ? "true" : "false") + "}";
}

std::string carry_out(const std::vector<std::string>& words) {
  const std::string& command = words.at(0);
  if (command == "advance") {
    clock_ns += static_cast<int64_t>(strtod(words.at(1).c_str(), nullptr) * static_cast<double>(falcon::kSecondNs));
    return "{}";
  }
  if (command == "start") return start(words);
  Replica& replica = replicas.at(atoi(words.at(1).c_str()));
  if (command == "crash_at") {
    replica.changes_left = atoll(words.at(2).c_str());
    return "{}";
  }
  if (!replica.copy) throw std::out_of_range("it is dead");
  if (command == "round") return round(&replica);
  if (command == "open") {
    replica.open = {words.begin() + 2, words.end()};
  } else if (command == "gone") {
    replica.gone = true;
  } else if (command == "fail") {
    replica.copy->fail();
  } else if (command == "well") {
    replica.copy->end_well();
  } else if (command == "flush") {
    replica.flushing = true;
    replica.flush_until_ns = clock_ns + (words.size() > 2 ? atoll(words[2].c_str()) : 20) * falcon::kSecondNs;
    replica.copy->flush();
  } else if (command == "crash") {
    replica.copy.reset();
  } else {
    throw std::out_of_range("no such command");
  }
  return "{}";
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    const std::vector<std::string> words = falcon::words_of(line);
    std::string answer;
    try {
      answer = carry_out(words);
    } catch (const Killed&) {
      replicas.at(atoi(words.at(1).c_str())).copy.reset();
      answer = "{\"crashed\":true}";
    } catch (const std::exception& error) {
      answer = "{\"wrong\":" + falcon::quoted(error.what()) + "}";
    }
    std::cout << answer << '\n' << std::flush;
  }
  return 0;
}
