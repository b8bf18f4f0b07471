// Which processes a signal reaches, for how long they are waited for, and what ended ranks leave behind: by tables of
// process trees. The launcher is 1; the processes of ranks that falcon-launch started are 10, 20, …
#include "process/signal_routing.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using falcon::Delivery;
using falcon::SignalRouting;

int failures = 0;

void expect(bool holds, const std::string& what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "signal_routing_test.cc:%d: %s\n", line, what.c_str());
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)

constexpr int64_t kSecond = 1000000000;
constexpr int64_t kNow = 1000 * kSecond;
constexpr falcon::StopTerms kRestart{SIGTERM, 30 * kSecond, kSecond};

enum Does { kDefault, kCatches, kBlocks, kIgnores, kZombie, kStopped };

struct Node {
  pid_t pid;
  pid_t parent;
  Does does = kDefault;
  const char* program = "";
  pid_t group = 10;
};

constexpr uint64_t kAll = ~uint64_t{0};

falcon::Member member_of(const Node& node) {
  falcon::Member member;
  member.process.pid = node.pid;
  member.process.parent = node.parent;
  member.process.group = node.group;
  member.process.started = static_cast<uint64_t>(node.pid);
  member.process.ended = node.does == kZombie;
  member.process.stopped = node.does == kStopped;
  member.signals.caught = node.does == kCatches ? kAll : 0;
  member.signals.blocked = node.does == kBlocks ? kAll : 0;
  member.signals.ignored = node.does == kIgnores ? kAll : 0;
  member.program = node.program;
  return member;
}

falcon::ProcessTree tree_of(const std::vector<Node>& nodes, std::vector<falcon::RankRoot> ranks = {{10, true}}) {
  falcon::ProcessTree tree;
  tree.launcher = 1;
  tree.ranks = std::move(ranks);
  for (const Node& node : nodes) tree.members.push_back(member_of(node));
  return tree;
}

std::vector<pid_t> pids(const std::vector<Delivery>& deliveries, int number) {
  std::vector<pid_t> found;
  for (const Delivery& each : deliveries) {
    if (each.number == number) found.push_back(each.pid);
  }
  return found;
}

using Pids = std::vector<pid_t>;

struct Case {
  const char* what;
  std::vector<Node> nodes;
  Pids term;  // by SIGTERM, in this order
  Pids usr1;  // by SIGUSR1
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases{
      {"a program without a handler dies, and is not killed by SIGUSR1", {{10, 1}}, {10}, {}},
      {"a trainer with data loader workers that have torch's own handler",
       {{10, 1, kCatches}, {11, 10, kCatches}, {12, 10, kCatches}},
       {10},
       {10}},
      {"a trainer with helpers that have none", {{10, 1, kCatches}, {11, 10}, {12, 11}}, {10}, {10}},
      {"a shell above a trainer: the shell first, so that it starts nothing more",
       {{10, 1}, {11, 10, kCatches}, {12, 11}},
       {10, 11},
       {11}},
      {"two shells above a trainer", {{10, 1}, {11, 10}, {12, 11, kCatches}, {13, 12, kCatches}}, {10, 11, 12}, {12}},
      {"a shell above a trainer without a handler: the rest when the shell is dead",
       {{10, 1}, {11, 10}, {12, 11}},
       {10},
       {}},
      {"a shell with a pipe: the trainer saves, tee lives to print what it says",
       {{10, 1}, {11, 10, kCatches}, {12, 10}},
       {10, 11},
       {11}},
      {"a shell with two programs that catch",
       {{10, 1}, {11, 10, kCatches}, {12, 10, kCatches}},
       {10, 11, 12},
       {11, 12}},
      {"tini waits for signals that it has blocked, and hands them on itself",
       {{10, 1, kBlocks}, {11, 10, kCatches}},
       {10},
       {10}},
      {"a launcher of the user's own hands on",
       {{10, 1, kCatches}, {11, 10, kCatches}, {12, 10, kCatches}},
       {10},
       {10}},
      {"a shell that ignores the signal does not ignore it for the trainer",
       {{10, 1, kIgnores, "/bin/sh"}, {11, 10, kCatches, "/bin/python"}, {12, 11, kCatches}},
       {10, 11},
       {11}},
      {"a trainer that ignores the signal ignores it for its data loader workers",
       {{10, 1, kIgnores, "/bin/python"}, {11, 10, kCatches, "/bin/python"}},
       {10},
       {}},
      {"a trainer without a handler above a helper with one", {{10, 1}, {11, 10, kCatches}}, {10, 11}, {11}},
      {"a setsid'ed helper of a trainer is below it all the same",
       {{10, 1, kCatches}, {11, 10, kCatches, "", 11}},
       {10},
       {10}},
      {"a zombie gets nothing", {{10, 1, kCatches}, {11, 10, kZombie}}, {10}, {10}},
      {"a dead child of a shell", {{10, 1}, {11, 10, kZombie}, {12, 10, kCatches}}, {10, 12}, {12}},
      {"an orphan of a rank that runs is not signalled while the rank may need it",
       {{10, 1, kCatches}, {11, 1, kCatches}, {12, 1, kCatches, "", 12}},
       {10},
       {10}},
  };
  return kCases;
}

void shells_end_before_the_programs_below_them_are_signalled() {
  const std::vector<Node> nodes{{10, 1},
                                {11, 10},
                                {12, 11, kCatches},
                                {20, 1},
                                {21, 20, kCatches},
                                {22, 20},
                                {30, 1, kCatches},
                                {31, 30, kCatches},
                                {40, 1},
                                {41, 40},
                                {50, 1, kIgnores, "/bin/sh"},
                                {51, 50, kCatches, "/bin/python"}};
  const falcon::ProcessTree tree = tree_of(nodes, {{10, true}, {20, true}, {30, true}, {40, true}, {50, true}});
  Pids first;
  for (const Delivery& each : SignalRouting().stop(tree, kRestart, true, kNow)) {
    if (each.ends_first) first.push_back(each.pid);
  }
  EXPECT(first == Pids({10, 11, 20}));
  for (const Delivery& each : SignalRouting().forward(tree, SIGUSR1)) EXPECT(!each.ends_first);
}

void signals_go_to_the_topmost_that_takes_them() {
  for (const Case& each : cases()) {
    const falcon::ProcessTree tree = tree_of(each.nodes);
    SignalRouting routing;
    expect(pids(routing.stop(tree, kRestart, true, kNow), SIGTERM) == each.term, each.what, __LINE__);
    expect(SignalRouting().look(tree, kNow).deliveries.empty(), each.what, __LINE__);
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
      expect(pids(SignalRouting().forward(tree, number), number) == each.term, each.what, __LINE__);
    }
    for (const int number : {SIGUSR1, SIGUSR2}) {
      expect(pids(SignalRouting().forward(tree, number), number) == each.usr1, each.what, __LINE__);
    }
  }
}

void job_control_reaches_what_it_stops() {
  const auto tree = tree_of({{10, 1}, {11, 10}, {12, 10, kCatches}, {13, 12}});
  EXPECT(pids(SignalRouting().forward(tree, SIGTSTP), SIGTSTP) == Pids({10, 11, 12}));
  const auto stopped = tree_of({{10, 1, kCatches}, {11, 10, kStopped}, {12, 11}});
  EXPECT(pids(SignalRouting().forward(stopped, SIGCONT), SIGCONT) == Pids({10, 11}));
  // Who is asked to end must be able to answer, and so must those that it waits for.
  const std::vector<Delivery> stop = SignalRouting().stop(stopped, kRestart, true, kNow);
  EXPECT(pids(stop, SIGTERM) == Pids({10}) && pids(stop, SIGCONT) == Pids({11}));
}

void ranks_have_time_by_what_they_do_with_the_signal() {
  const struct {
    Does does;
    int64_t before;
    int64_t after;
  } kinds[] = {
      {kCatches, 30 * kSecond - 1, 30 * kSecond}, {kIgnores, kSecond - 1, kSecond}, {kDefault, kSecond - 1, kSecond}};
  for (const auto& kind : kinds) {
    const auto tree = tree_of({{10, 1, kind.does}});
    SignalRouting routing;
    routing.stop(tree, kRestart, true, kNow);
    EXPECT(routing.look(tree, kNow + kind.before).waits);
    EXPECT(!routing.look(tree, kNow + kind.after).waits);
  }
  // Blocked, and nobody waits for it.
  auto tree = tree_of({{10, 1, kBlocks}});
  tree.members[0].signals.pending = kAll;
  SignalRouting routing;
  routing.stop(tree, kRestart, true, kNow);
  EXPECT(routing.look(tree, kNow + kSecond - 1).waits && !routing.look(tree, kNow + kSecond).waits);
}

// PyTorch Lightning, for one, restores the default while it saves; the data loader workers still catch the signal.
void a_program_that_removes_its_handler_keeps_its_time() {
  SignalRouting routing;
  routing.stop(tree_of({{10, 1, kCatches}, {11, 10, kCatches}}), kRestart, true, kNow);
  const auto later = tree_of({{10, 1}, {11, 10, kCatches}});
  const falcon::Routed routed = routing.look(later, kNow + 20 * kSecond);
  EXPECT(routed.waits && routed.deliveries.empty());
  // The pod's end follows: the program has had its signal, and its workers get none.
  EXPECT(routing.stop(later, {SIGTERM, 60 * kSecond, 60 * kSecond, false}, true, kNow + 20 * kSecond).empty());
  EXPECT(routing.look(later, kNow + 70 * kSecond).waits);
  // A second signal from outside is the user's own, to the program alone.
  EXPECT(pids(routing.forward(later, SIGTERM), SIGTERM) == Pids({10}));
}

void the_program_of_a_dead_shell_keeps_its_time_and_its_helpers() {
  SignalRouting routing;
  routing.stop(tree_of({{10, 1}, {11, 10, kCatches}, {12, 10}, {13, 11}}), kRestart, true, kNow);
  const std::vector<falcon::RankRoot> dead{{10, false, false, kNow}};
  falcon::Routed routed = routing.look(tree_of({{11, 1, kCatches}, {12, 1}, {13, 11}}, dead), kNow + 10 * kSecond);
  EXPECT(routed.waits && routed.deliveries.empty());
  routed = routing.look(tree_of({{12, 1}, {13, 1}}, dead), kNow + 11 * kSecond);
  EXPECT(routed.waits && pids(routed.deliveries, SIGTERM) == Pids({12, 13}));
}

void what_a_failed_rank_leaves_is_signalled_at_once_and_has_seconds() {
  const std::vector<falcon::RankRoot> failed{{10, false, false, kNow}, {20, true}};
  const std::vector<Node> nodes{{11, 1, kCatches},         {12, 1},
                                {13, 1, kIgnores},         {14, 11},
                                {20, 1, kDefault, "", 20}, {21, 20, kDefault, "", 20},
                                {22, 1, kCatches, "", 22}};
  SignalRouting routing;
  falcon::Routed routed = routing.look(tree_of(nodes, failed), kNow);
  // 22 has left its rank's group: it may be the helper of a rank that runs.
  EXPECT(routed.waits && pids(routed.deliveries, SIGTERM) == Pids({11, 12, 13}));
  routed = routing.look(tree_of(nodes, failed), kNow + SignalRouting::kIgnoringNs);
  EXPECT(routed.waits && routed.deliveries == std::vector<Delivery>({{13, SIGKILL}}));
  routed = routing.look(tree_of(nodes, failed), kNow + SignalRouting::kSurvivorNs - 1);
  EXPECT(routed.waits && pids(routed.deliveries, SIGKILL) == Pids({12, 13}));
  routed = routing.look(tree_of(nodes, failed), kNow + SignalRouting::kSurvivorNs);
  EXPECT(!routed.waits && pids(routed.deliveries, SIGKILL) == Pids({11, 12, 13, 14}));
  // A chain of helpers has these seconds together.
  routed = routing.look(tree_of({{14, 1, kCatches}, {20, 1, kDefault, "", 20}}, failed), kNow + 4 * kSecond);
  EXPECT(routed.waits && pids(routed.deliveries, SIGTERM) == Pids({14}));
  routed = routing.look(tree_of({{14, 1, kCatches}, {20, 1, kDefault, "", 20}}, failed), kNow + 5 * kSecond);
  EXPECT(pids(routed.deliveries, SIGKILL) == Pids({14}));
}

void the_program_of_a_shell_that_is_left_has_its_time_when_the_shell_is_dead() {
  const std::vector<falcon::RankRoot> failed{{10, false, false, kNow}};
  const std::vector<Node> nodes{{14, 1}, {15, 14, kCatches}};
  SignalRouting routing;
  routing.look(tree_of({{11, 1, kCatches}}, failed), kNow);
  const int64_t late_ns = kNow + SignalRouting::kSurvivorNs - 1;
  EXPECT(pids(routing.look(tree_of(nodes, failed), late_ns).deliveries, SIGTERM) == Pids({14, 15}));
  const int64_t over_ns = late_ns + SignalRouting::kEndNs + SignalRouting::kDyingNs;
  const std::vector<Node> left{{15, 1, kCatches}};
  EXPECT(routing.look(tree_of(left, failed), over_ns - 1).deliveries.empty());
  EXPECT(pids(routing.look(tree_of(left, failed), over_ns).deliveries, SIGKILL) == Pids({15}));
}

void an_ended_rank_that_is_not_reaped_yet_is_waited_for() {
  SignalRouting routing;
  routing.stop(tree_of({{10, 1, kCatches}, {11, 10, kCatches}}), kRestart, true, kNow);
  falcon::Routed routed = routing.look(tree_of({{10, 1, kZombie}, {11, 1, kCatches}}), kNow);
  EXPECT(routed.waits && routed.deliveries.empty());
  routed = routing.look(tree_of({{11, 1, kCatches}}, {{10, false, true, kNow}}), kNow);
  EXPECT(routed.waits && pids(routed.deliveries, SIGTERM) == Pids({11}));
}

void a_stop_reaches_what_ranks_have_left_before() {
  const std::vector<falcon::RankRoot> dead{{10, false, false, kNow - kSecond}};
  SignalRouting routing;
  EXPECT(routing.stop(tree_of({{11, 1, kCatches}}, dead), {SIGINT, kSecond, kSecond}, true, kNow).empty());
  const falcon::Routed routed = routing.look(tree_of({{11, 1, kCatches}}, dead), kNow);
  EXPECT(routed.waits && routed.deliveries == std::vector<Delivery>({{11, SIGINT}}));
}

// A checkpoint's writer, an uploader: it is left alone for a while, but no restart and no end of the pod waits for it.
void what_a_rank_leaves_that_ended_well_works_on() {
  const std::vector<falcon::RankRoot> well{{10, false, true, kNow}};
  const std::vector<Node> nodes{{11, 1, kCatches}, {12, 1, kDefault, "", 12}};
  for (const bool stopped : {false, true}) {
    SignalRouting routing;
    if (stopped) routing.stop(tree_of(nodes, well), kRestart, false, kNow);
    falcon::Routed routed = routing.look(tree_of(nodes, well), kNow + SignalRouting::kUndisturbedNs - 1);
    EXPECT(routed.waits && routed.deliveries.empty());
    routed = routing.look(tree_of(nodes, well), kNow + SignalRouting::kUndisturbedNs);
    EXPECT(routed.waits && pids(routed.deliveries, SIGTERM) == Pids({11, 12}));
    routed = routing.look(tree_of(nodes, well), kNow + SignalRouting::kUndisturbedNs + SignalRouting::kSurvivorNs);
    EXPECT(!routed.waits && pids(routed.deliveries, SIGKILL) == Pids({11, 12}));
  }
  SignalRouting urgent;
  urgent.stop(tree_of(nodes, well), kRestart, true, kNow);
  EXPECT(pids(urgent.look(tree_of(nodes, well), kNow).deliveries, SIGTERM) == Pids({11, 12}));
  // Another local rank still trains, for hours.
  const std::vector<falcon::RankRoot> first{{10, false, true, kNow}, {20, true}};
  const std::vector<Node> both{{11, 1, kCatches}, {20, 1, kDefault, "", 20}};
  SignalRouting routing;
  const falcon::Routed routed = routing.look(tree_of(both, first), kNow + 3600 * kSecond);
  EXPECT(!routed.waits && routed.deliveries.empty());
}

// Whether a stop ended the programs of rank 10 well. `take`: what happens after its signals.
template <typename Take>
bool ends_well(const std::vector<Node>& nodes, Take take) {
  SignalRouting routing;
  routing.stop(tree_of(nodes), kRestart, true, kNow);
  take(&routing);
  return routing.programs_ended_well(10);
}

void programs_below_a_dead_shell_may_have_ended_well() {
  const std::vector<Node> shell{{10, 1}, {11, 10, kCatches}, {12, 11}};
  EXPECT(ends_well(shell, [](SignalRouting* routing) { routing->note_end(11, true, false); }));
  EXPECT(!ends_well(shell, [](SignalRouting*) {}));
  EXPECT(!ends_well(shell, [](SignalRouting* routing) { routing->note_end(11, false, false); }));
  EXPECT(!ends_well(shell, [](SignalRouting* routing) { routing->note_end(11, false, true); }));
  // A shell in between may die of the signal; a helper that is killed may have been writing.
  const std::vector<Node> shells{{10, 1}, {11, 10}, {12, 11, kCatches}, {13, 10, kCatches}, {14, 12}};
  const auto both = [](SignalRouting* routing) {
    routing->note_end(11, false, true);
    routing->note_end(12, true, false);
    routing->note_end(13, true, false);
  };
  EXPECT(ends_well(shells, both));
  EXPECT(!ends_well(shells, [](SignalRouting* routing) { routing->note_end(12, true, false); }));
  EXPECT(!ends_well(shells, [&](SignalRouting* routing) {
    both(routing);
    routing->note_end(14, false, true);
  }));
  // Nothing that took the signal: whatever ran has died of it. And a program that was signalled by nobody.
  EXPECT(!ends_well({{10, 1}, {11, 10}}, [](SignalRouting* routing) { routing->note_end(11, true, false); }));
  SignalRouting none;
  none.note_end(11, true, false);
  EXPECT(!none.programs_ended_well(10));
}

void dispositions_are_read_as_the_kernel_writes_them() {
  const falcon::Dispositions found = falcon::parse_dispositions(
      "Name:\tpython3\nThreads:\t1\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\nSigBlk:\t0000000000010000\n"
      "SigIgn:\t0000000001001000\nSigCgt:\t0000000100000002\nCapInh:\t0000000000000000\n");
  EXPECT(found.pending == uint64_t{1} << (SIGTERM - 1) && found.caught == (uint64_t{1} << 32 | 2));
  EXPECT(found.ignored == 0x1001000 && found.blocked == uint64_t{1} << (SIGCHLD - 1));
  EXPECT(falcon::parse_dispositions("").caught == 0);
}

// A program whose main thread has ended is a zombie by its letter, and lives.
void a_dead_main_thread_is_no_dead_process() {
  const std::string rest = " 10 10 10 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 ";
  falcon::Process process;
  EXPECT(falcon::state_of("11 (a) b) Z" + rest + "3 0 77 0", &process) == 'Z' && !process.ended);
  EXPECT(process.parent == 10 && process.group == 10 && process.started == 77);
  EXPECT(falcon::state_of("11 (a) Z" + rest + "1 0 77 0", &process) == 'Z' && process.ended);
  EXPECT(falcon::state_of("11 (a) T" + rest + "1 0 77 0", &process) == 'T' && process.stopped);
}

}  // namespace

int main() {
  signals_go_to_the_topmost_that_takes_them();
  shells_end_before_the_programs_below_them_are_signalled();
  job_control_reaches_what_it_stops();
  ranks_have_time_by_what_they_do_with_the_signal();
  a_program_that_removes_its_handler_keeps_its_time();
  the_program_of_a_dead_shell_keeps_its_time_and_its_helpers();
  what_a_failed_rank_leaves_is_signalled_at_once_and_has_seconds();
  the_program_of_a_shell_that_is_left_has_its_time_when_the_shell_is_dead();
  an_ended_rank_that_is_not_reaped_yet_is_waited_for();
  a_stop_reaches_what_ranks_have_left_before();
  what_a_rank_leaves_that_ended_well_works_on();
  programs_below_a_dead_shell_may_have_ended_well();
  dispositions_are_read_as_the_kernel_writes_them();
  a_dead_main_thread_is_no_dead_process();
  return failures == 0 ? 0 : 1;
}
