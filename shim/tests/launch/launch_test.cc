// launch_test FALCON_LAUNCH: the launcher's pure parts.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "command/environment.h"
#include "command/program.h"
#include "common/files.h"
#include "measurement/bench.h"
#include "output/announcement.h"
#include "output/output_file.h"
#include "process/rings.h"
#include "wire/plan.h"
#include "wire/report.h"

namespace {

int failures = 0;

void expect(bool holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "launch_test.cc:%d: %s\n", line, what);
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)

void products() {
  constexpr int kSize = 96;  // no whole number of blocks
  std::vector<float> left(kSize * kSize);
  std::vector<float> right(kSize * kSize);
  for (int at = 0; at < kSize * kSize; ++at) {
    left[static_cast<size_t>(at)] = static_cast<float>(at % 7 - 3);
    right[static_cast<size_t>(at)] = static_cast<float>(at % 5 - 2);
  }
  std::vector<float> out(kSize * kSize);
  falcon::multiply(left, right, &out, kSize);
  float expected = 0;
  for (size_t inner = 0; inner < kSize; ++inner) expected += left[40 * kSize + inner] * right[inner * kSize + 95];
  EXPECT(out[40 * kSize + 95] == expected);
  EXPECT(falcon::error_of(left, right, out, kSize) == 0);
  out[kSize - 1] += 1;
  EXPECT(falcon::error_of(left, right, out, kSize) > 1e-4);
  out[kSize - 1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT(falcon::error_of(left, right, out, kSize) > 1e-4);
}

void plans() {
  const char* run =
      "version=1\ngeneration=3\nphase=Run\nworld_size=6\nnnodes=3\nnode_rank=1\nprocs=2\nfirst_rank=2\n"
      "master_addr=10.0.0.1\nmaster_port=29501\nexit_code=0\nfrom_a_newer_agent=1\n";
  std::string error;
  const auto plan = falcon::parse_plan(run, &error);
  EXPECT(plan && plan->generation == 3 && plan->phase == falcon::Phase::kRun && plan->procs == 2);
  EXPECT(plan && plan->first_rank == 2 && plan->master_addr == "10.0.0.1" && plan->master_port == 29501);
  EXPECT(falcon::parse_plan("version=1\ngeneration=4\nphase=Stop\n", &error).has_value() && error.empty());
  EXPECT(plan && plan->retries == 0);  // an earlier agent does not say it
  const auto retried = falcon::parse_plan(std::string(run) + "retries=3\n", &error);
  EXPECT(retried && retried->retries == 3);
  EXPECT(!falcon::parse_plan(std::string(run) + "retries=11\n", &error) && error.rfind("retries", 0) == 0);
  EXPECT(plan && plan->standby == falcon::Standby::kNone && !plan->settled);
  const auto waiting = falcon::parse_plan(std::string(run) + "standby=Imports\nsettled=1\n", &error);
  EXPECT(waiting && waiting->standby == falcon::Standby::kImports && waiting->settled);
  const auto ahead = falcon::parse_plan(std::string(run) + "standby=Processes\nnext_master_port=29502\n", &error);
  EXPECT(ahead && ahead->standby == falcon::Standby::kProcesses && ahead->next_master_port == 29502);
  const auto later = falcon::parse_plan(std::string(run) + "standby=FromANewerAgent\n", &error);
  EXPECT(later && later->standby == falcon::Standby::kNone);
  EXPECT(plan && plan->links == 0);
  const auto probed = falcon::parse_plan(std::string(run) + "links=7\n", &error);
  EXPECT(probed && probed->links == 7);
  const char* stop = "version=1\ngeneration=4\nphase=Stop\n";
  const auto unchecked = falcon::parse_plan(stop, &error);
  EXPECT(unchecked && unchecked->check == 0);
  const auto checked = falcon::parse_plan(std::string(stop) + "check=2\ncheck_ms=2000\n", &error);
  EXPECT(checked && checked->check == 2 && checked->check_ms == 2000 && !checked->check_links);
  const auto linked = falcon::parse_plan(std::string(stop) + "check=2\ncheck_ms=2000\ncheck_links=1\n", &error);
  EXPECT(linked && linked->check_links);
  EXPECT(!falcon::parse_plan(std::string(stop) + "check=2\ncheck_ms=60001\n", &error) &&
         error.rfind("check_ms", 0) == 0);
  const auto finish = falcon::parse_plan("version=1\ngeneration=4\nphase=Finish\nexit_code=3\n", &error);
  EXPECT(finish && finish->exit_code == 3);
  const std::pair<const char*, const char*> refused[] = {
      {"", "version"},
      {"generation=1\nphase=Stop\n", "version"},
      {"version=2\ngeneration=1\nphase=Stop\n", "version"},
      {"version=1\ngeneration=0\nphase=Stop\n", "generation"},
      {"version=1\ngeneration=x\nphase=Stop\n", "generation is 'x'"},
      {"version=1\ngeneration=1\nphase=Dance\n", "phase is 'Dance'"},
      {"version=1\ngeneration=1\nphase=Run\n", "world_size"},
      {"version=1\ngeneration=1\nphase=Run\nworld_size=2\nnnodes=2\nnode_rank=2\n", "node_rank"},
  };
  for (const auto& [text, field] : refused) {
    EXPECT(!falcon::parse_plan(text, &error));
    EXPECT(error.rfind(field, 0) == 0);
  }
}

void hostile_files() {
  char pattern[] = "/tmp/falcon-launch-test-XXXXXX";
  const char* made = mkdtemp(pattern);
  EXPECT(made != nullptr);
  if (made == nullptr) return;
  const std::string folder = made;
  const std::string status = folder + "/status";
  EXPECT(mkfifo((status + ".new").c_str(), 0666) == 0);  // nobody reads it: to open it for writing would wait for ever
  EXPECT(falcon::write_file(status, "a") && falcon::read_file(status) == "a");
  const std::string other = folder + "/other";
  EXPECT(falcon::write_file(other, "kept") && symlink(other.c_str(), (status + ".new").c_str()) == 0);
  EXPECT(falcon::write_file(status, "b") && falcon::read_file(status) == "b" && falcon::read_file(other) == "kept");
  EXPECT(mkdir((status + ".new").c_str(), 0755) == 0 && !falcon::write_file(status, "c"));
  rmdir((status + ".new").c_str());
  EXPECT(falcon::read_regular(other, 2) == "ke" && falcon::read_regular(other, 99) == "kept");
  const std::string fifo = folder + "/fifo";
  EXPECT(mkfifo(fifo.c_str(), 0666) == 0 && falcon::read_regular(fifo, 99).empty());  // nobody writes it: no wait
  EXPECT(symlink(other.c_str(), (folder + "/link").c_str()) == 0 && falcon::read_regular(folder + "/link", 99).empty());
  EXPECT(falcon::read_regular(folder, 99).empty() && falcon::read_regular(folder + "/none", 99).empty());
  unlink(fifo.c_str());
  unlink((folder + "/link").c_str());
  unlink(status.c_str());
  unlink(other.c_str());
  rmdir(folder.c_str());
}

void environments() {
  falcon::Plan plan;
  plan.generation = 3;
  plan.world_size = 4;
  plan.nnodes = 2;
  plan.node_rank = 1;
  plan.procs = 2;
  plan.first_rank = 2;
  plan.master_addr = "10.0.0.1";
  plan.master_port = 29501;
  plan.retries = 2;
  falcon::Options options;
  options.run_dir = "/run";
  options.shim = "/bin/shim.so";
  const falcon::Variables base{{"LD_PRELOAD", "/other.so"}, {"RANK", "9"}, {"HOME", "/root"}};
  falcon::Variables rank = rank_environment(base, options, plan, 1, {true, false});
  EXPECT(rank["RANK"] == "3" && rank["LOCAL_RANK"] == "1" && rank["GROUP_RANK"] == "1" && rank["WORLD_SIZE"] == "4");
  EXPECT(rank["LD_PRELOAD"] == "/other.so:/bin/shim.so" && rank["HOME"] == "/root");
  EXPECT(rank["ASAN_OPTIONS"] == "verify_asan_link_order=0");
  EXPECT(rank["OMP_NUM_THREADS"] == "1" && rank["TORCHELASTIC_RESTART_COUNT"] == "2");
  EXPECT(rank["FALCON_RETRIES"] == "2");
  EXPECT(rank["FALCON_RING_DIR"] == "/run/launch/rings" && rank.count("PET_NNODES") == 0);
  EXPECT(rank_environment(base, options, plan, 1, {})["LD_PRELOAD"] == "/other.so");
  EXPECT(rank.count("PYTHONPATH") == 0 && rank.count("FALCON_STACKS") == 0);
  options.python = "/ours";
  EXPECT(rank_environment({}, options, plan, 0, {false, true})["PYTHONPATH"] == "/ours/falcon_site:/ours");
  EXPECT(rank_environment({{"PYTHONPATH", "/a:/b"}}, options, plan, 0, {false, true})["PYTHONPATH"] ==
         "/ours/falcon_site:/a:/b:/ours");
  EXPECT(rank_environment({}, options, plan, 0, {false, true}).count("FALCON_IMPORTS") == 0);
  plan.standby = falcon::Standby::kImports;
  EXPECT(rank_environment({}, options, plan, 1, {false, true})["FALCON_IMPORTS"] == "/run/launch/standby/imports.1");
  EXPECT(rank_environment({}, options, plan, 1, {true, false}).count("FALCON_IMPORTS") == 0);
  EXPECT(rank_environment({{"OMP_NUM_THREADS", "7"}}, options, plan, 0, {})["OMP_NUM_THREADS"] == "7");
  options.own = true;
  falcon::Variables own = rank_environment({}, options, plan, 0, {true, false});
  EXPECT(own["PET_NODE_RANK"] == "1" && own["PET_NPROC_PER_NODE"] == "2" && own["PET_RDZV_BACKEND"] == "static");
  EXPECT(own["FALCON_RETRIES"] == "2");
  EXPECT(own["PET_RDZV_ENDPOINT"] == "10.0.0.1:29501" && own.count("RANK") == 0 && own["MASTER_PORT"] == "29501");
}

void programs(const char* self, const char* launcher) {
  EXPECT(falcon::untracked_file(self).empty());
  EXPECT(falcon::untracked_file(launcher).empty());
  EXPECT(falcon::untracked_reason({"sh", "-c", "true"}).empty());
  EXPECT(falcon::untracked_reason({"no-such-program"}).empty());
  EXPECT(falcon::find_program("sh").back() == 'h');
  EXPECT(falcon::find_program("no-such-program").empty());
}

// Which commands start Python and do nothing else.
void held_commands() {
  char pattern[] = "/tmp/falcon-launch-test-XXXXXX";
  const char* made = mkdtemp(pattern);
  EXPECT(made != nullptr);
  if (made == nullptr) return;
  const std::string folder = made;
  const auto script = [&](const char* name, const char* text) {
    const std::string path = folder + "/" + name;
    EXPECT(falcon::write_file(path, text, 0755));
    return path;
  };
  const std::string python = script("python3.11",
                                    "\x7f"
                                    "ELF");
  const std::string wrapped = script("python", "#!/bin/bash\nexec python3 \"$@\"\n");
  const std::string program = script("train", ("#!" + python + " -u\n").c_str());
  const std::string shell = script("train.sh", "#!/bin/sh\nmkdir run; python train.py\n");
  const auto held = [](const std::vector<std::string>& command) { return falcon::unheld_reason(command).empty(); };
  EXPECT(held({python, "train.py"}) && held({program}) && held({program, "$RANK"}));
  EXPECT(!held({wrapped, "train.py"}) && !held({shell}) && !held({"sleep", "9"}) && !held({"no-such-program"}));
  EXPECT(held({"sh", "-c", python + " -m train --lr=0.1 data/a.bin"}) && held({"bash", "-c", "exec " + program}));
  EXPECT(held({"sh", "-c", "cd /work && exec " + python + " train.py"}));
  for (const char* more : {" $RANK", "; true", " | cat", " > log", " `id`", " *.py", " 'a b'", " & wait", "\ntrue"}) {
    EXPECT(!held({"sh", "-c", python + more}));
  }
  EXPECT(!held({"sh", "-c", "A=1 " + python}) && !held({"sh", "-c", "cd $HOME && " + python}));
  EXPECT(!held({"sh", "-c", "mkdir a && " + python}) && !held({"sh", "-c", ""}) && !held({"sh", "-c", "exec"}));
  EXPECT(!held({"sh", "-ec", python}) && !held({"sh", "-c", python, "zero"}) && !held({"sh", shell}));
  setenv("BASH_ENV", shell.c_str(), 1);
  EXPECT(!held({"bash", "-c", python}) && held({python}));
  unsetenv("BASH_ENV");
  for (const std::string& path : {python, wrapped, program, shell}) unlink(path.c_str());
  rmdir(folder.c_str());
}

void reports() {
  falcon::StatusReport status;
  EXPECT(falcon::status_json(status).find("\"standby\":null") != std::string::npos);
  status.standby = falcon::StandbyReport{1, 2, "a \"b\""};
  status.error = "a \"quoted\"\nline";
  status.ranks.emplace_back();
  status.ranks.back().signal = 9;
  const std::string text = falcon::status_json(status);
  EXPECT(text.find(R"("error":"a \"quoted\"\u000aline")") != std::string::npos);
  EXPECT(text.find(R"("standby":{"ready":1,"wanted":2,"why":"a \"b\""})") != std::string::npos);
  EXPECT(text.find(R"("exit_code":null,"signal":9)") != std::string::npos);
  EXPECT(falcon::counters_json(1, {}, {}, {}).find("\"nr_throttled\":null") != std::string::npos);
  falcon::RankSchedules ranks;
  ranks.ranks.push_back({0, {}, falcon::OpenFiles{7, 1024}});
  const std::string counters = falcon::counters_json(1, {}, ranks, {{"/data \"x\"", 1, 2, 3, 0}});
  EXPECT(counters.find(R"("open_files":7,"open_files_limit":1024)") != std::string::npos);
  EXPECT(counters.find(R"({"path":"/data \"x\"","bytes":1,"limit_bytes":2,"files":3,"limit_files":0})") !=
         std::string::npos);
}

using Names = std::vector<std::string>;

Names own(const falcon::Rings& rings) {
  Names names;
  for (const falcon::RingFile& ring : rings.own()) names.push_back(ring.name);
  return names;
}

// launcher 1 → rank 10 → its helper 11.
void helpers_of_a_rank() {
  falcon::Rings rings;
  rings.begin(3, 4, 2);
  rings.choose({"g3-r4-11.ring"}, {{10, 1, false, 5}, {11, 10, false, 6}}, {10});
  EXPECT(own(rings) == Names{"g3-r4-11.ring"});  // as far as anybody can know
  rings.choose({"g3-r4-11.ring", "g3-r4-10.ring"}, {{10, 1, false, 5}, {11, 10, false, 6}}, {10});
  EXPECT(own(rings) == Names{"g3-r4-10.ring"} && rings.superseded().empty());
  rings.choose({"g3-r4-11.ring", "g3-r4-10.ring"}, {{11, 1, false, 6}}, {10});  // the rank died, the helper lives on
  EXPECT(own(rings) == Names{"g3-r4-10.ring"} && rings.superseded().empty());
  rings.choose({"g3-r4-11.ring", "g3-r4-10.ring"}, {{10, 1, false, 5}}, {10});  // the helper has done its work
  EXPECT(own(rings) == Names{"g3-r4-10.ring"} && rings.superseded() == Names{"g3-r4-11.ring"});
  rings.choose({"g3-r4-11.ring", "g3-r4-10.ring"}, {{10, 1, true, 5}}, {10});  // nobody has reaped the rank yet
  EXPECT(own(rings) == Names{"g3-r4-10.ring"});
}

// launcher 1 → torchrun 10 → workers.
void workers_after_an_in_place_restart() {
  falcon::Rings rings;
  rings.begin(1, 0, 2);
  rings.choose({"g1-r0-20.ring", "g1-r1-21.ring"}, {{10, 1, false, 1}, {20, 10, false, 2}, {21, 10, false, 2}}, {10});
  EXPECT((own(rings) == Names{"g1-r0-20.ring", "g1-r1-21.ring"}));
  const std::vector<falcon::Process> second{
      {10, 1, false, 1}, {30, 10, false, 9}, {31, 10, false, 9}, {29, 1, false, 3}};
  rings.choose({"g1-r0-20.ring", "g1-r1-21.ring", "g1-r0-29.ring", "g1-r0-30.ring"}, second, {10});
  EXPECT((own(rings) == Names{"g1-r0-30.ring", "g1-r1-21.ring"}));  // 29: what the first worker left behind
  EXPECT(rings.superseded() == Names{"g1-r0-20.ring"});
}

void rings_that_are_none_of_ours() {
  falcon::Rings rings;
  rings.begin(2, 8, 8);
  const std::vector<falcon::Process> living{{10, 1, false, 1}};
  rings.choose({"g1-r8-10.ring", "g2-r7-10.ring", "g2-r16-10.ring", "g2-r8-10.ring.new", "g2-r08-10.ring", "../x",
                "ready", "g2-r8--1.ring", "g99999999999-r8-10.ring"},
               living, {10});
  EXPECT(own(rings).empty() && rings.superseded().empty());
}

// mpirun 10 of a kind that does not say who is who, and a helper 22 of worker 20.
void ranks_without_a_number() {
  falcon::Rings rings;
  rings.begin(1, 0, 2);
  const std::vector<falcon::Process> living{
      {10, 1, false, 1}, {20, 10, false, 2}, {21, 10, false, 3}, {22, 20, false, 4}};
  rings.choose({"g1-r-1-22.ring", "g1-r-1-21.ring", "g1-r-1-20.ring"}, living, {10});
  EXPECT((own(rings) == Names{"g1-r-1-20.ring", "g1-r-1-21.ring"}));
  rings.choose({"g1-r-1-22.ring", "g1-r-1-21.ring", "g1-r-1-20.ring"}, {}, {10});  // all have ended
  EXPECT((own(rings) == Names{"g1-r-1-20.ring", "g1-r-1-21.ring"}));
}

uint64_t total_of(const std::string& content) {
  falcon::OutputHeader header{};
  if (content.size() >= sizeof(header)) memcpy(&header, content.data(), sizeof(header));
  return header.magic == falcon::kOutputMagic ? header.total : 0;
}

void output_files(const std::string& folder) {
  const std::string path = folder + "/output.0";
  falcon::OutputFile file;
  file.append(1, "lost", 4);  // nothing was made yet
  EXPECT(file.make(path, 3, 0));
  const std::string piece(100'001, 'x');
  for (int i = 0; i < 11; ++i) file.append(1, piece.data(), piece.size());
  file.append(1, "end", 3);
  const uint64_t total = 11 * piece.size() + 3;
  std::string content = falcon::read_file(path);
  EXPECT(content.size() == falcon::kOutputHeaderBytes + falcon::kOutputBytes && total_of(content) == total);
  EXPECT(content.substr(falcon::kOutputHeaderBytes + (total - 3) % falcon::kOutputBytes, 3) == "end");
  EXPECT(content.find("lost") == std::string::npos);
  EXPECT(truncate(path.c_str(), 0) == 0);  // by a rank: the next writes go on
  file.append(1, "more", 4);
  falcon::OutputFile next;
  EXPECT(next.make(path, 4, 0) && total_of(falcon::read_file(path)) == 0);
  file.append(1, piece.data(), piece.size());  // of the generation before: it has its own file
  EXPECT(total_of(falcon::read_file(path)) == 0);
  next.append(1, "half", 4);
  next.append(2, "whole\n", 6);
  next.append(1, " a line\r", 8);
  next.append(1, "", 0);
  next.append(2, "more", 4);
  EXPECT(next.within_line());
  next.append(2, " of it\n", 7);
  EXPECT(!next.within_line());
  const std::string kept = "half\nwhole\n a line\rmore of it\n";
  EXPECT(falcon::read_file(path).substr(falcon::kOutputHeaderBytes, kept.size()) == kept);
  falcon::OutputFile nowhere;
  EXPECT(!nowhere.make(folder + "/none/output.0", 1, 0));
  nowhere.append(1, "x", 1);
  unlink(path.c_str());
}

void announcements(const std::string& folder) {
  const auto names = [&] {
    size_t found = 0;
    for (const std::string& name : falcon::list_files(folder, 100)) found += name.rfind("printed.", 0) == 0 ? 1 : 0;
    return found;
  };
  const auto is_first = [&] { return access((folder + "/printed.0").c_str(), F_OK) == 0; };
  constexpr int64_t kMs = 1'000'000;
  falcon::Announcement printed(folder + "/printed");
  EXPECT(printed.wait_ms(0) == -1 && names() == 0);
  printed.note(0);
  EXPECT(names() == 1 && !is_first() && printed.wait_ms(0) == -1);  // at once
  printed.note(10 * kMs);
  EXPECT(!is_first() && printed.wait_ms(10 * kMs) == 11);  // too early
  printed.tell(20 * kMs);
  EXPECT(is_first() && names() == 1 && printed.wait_ms(20 * kMs) == -1);
  for (const int ms : {40, 60, 80}) printed.note(ms * kMs);
  EXPECT(!is_first());
  printed.note(100 * kMs);
  EXPECT(!is_first() && printed.wait_ms(100 * kMs) == 101);  // what was saved up is spent
  printed.tell(200 * kMs);
  printed.note(220 * kMs);
  EXPECT(is_first() && printed.wait_ms(220 * kMs) == 181);
  printed.tell(400 * kMs);
  EXPECT(!is_first());
  printed.tell(900 * kMs);
  EXPECT(!is_first());                      // nothing was printed
  unlink((folder + "/printed.1").c_str());  // by a rank
  printed.note(5000 * kMs);
  EXPECT(names() == 1 && is_first());
  printed.note(5020 * kMs);
  EXPECT(!is_first());
  unlink((folder + "/printed.1").c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  products();
  plans();
  hostile_files();
  environments();
  programs(argv[0], argv[1]);
  held_commands();
  reports();
  helpers_of_a_rank();
  workers_after_an_in_place_restart();
  rings_that_are_none_of_ours();
  ranks_without_a_number();
  char folder[] = "/tmp/falcon-launch-test-XXXXXX";
  EXPECT(mkdtemp(folder) != nullptr);
  output_files(folder);
  announcements(folder);
  rmdir(folder);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
