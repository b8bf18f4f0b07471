// launch_test FALCON_LAUNCH: the launcher's pure parts.
#include <cstdio>
#include <cstdlib>

#include "plan.h"
#include "program.h"
#include "report.h"

namespace {

int failures = 0;

void expect(bool holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "launch_test.cc:%d: %s\n", line, what);
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)

void plans() {
  const char* run =
      "version=1\ngeneration=3\nphase=Run\nworld_size=6\nnnodes=3\nnode_rank=1\nprocs=2\nfirst_rank=2\n"
      "master_addr=10.0.0.1\nmaster_port=29501\nexit_code=0\nfrom_a_newer_agent=1\n";
  const auto plan = falcon::parse_plan(run);
  EXPECT(plan && plan->generation == 3 && plan->phase == falcon::Phase::kRun && plan->procs == 2);
  EXPECT(plan && plan->first_rank == 2 && plan->master_addr == "10.0.0.1" && plan->master_port == 29501);
  EXPECT(falcon::parse_plan("version=1\ngeneration=4\nphase=Stop\n").has_value());
  const auto finish = falcon::parse_plan("version=1\ngeneration=4\nphase=Finish\nexit_code=3\n");
  EXPECT(finish && finish->exit_code == 3);
  for (const char* bad : {"", "generation=1\nphase=Stop\n", "version=2\ngeneration=1\nphase=Stop\n",
                          "version=1\ngeneration=0\nphase=Stop\n", "version=1\ngeneration=x\nphase=Stop\n",
                          "version=1\ngeneration=1\nphase=Dance\n", "version=1\ngeneration=1\nphase=Run\n"}) {
    EXPECT(!falcon::parse_plan(bad));
  }
}

void programs(const char* self, const char* launcher) {
  EXPECT(falcon::untracked_file(self).empty());
  EXPECT(falcon::untracked_file(launcher).empty());
  EXPECT(falcon::untracked_reason({"sh", "-c", "true"}).empty());
  EXPECT(falcon::untracked_reason({"no-such-program"}).empty());
  EXPECT(falcon::find_program("sh").back() == 'h');
  EXPECT(falcon::find_program("no-such-program").empty());
}

void reports() {
  falcon::StatusReport status;
  status.error = "a \"quoted\"\nline";
  status.ranks.emplace_back();
  status.ranks.back().signal = 9;
  const std::string text = falcon::status_json(status);
  EXPECT(text.find(R"("error":"a \"quoted\"\u000aline")") != std::string::npos);
  EXPECT(text.find(R"("exit_code":null,"signal":9)") != std::string::npos);
  EXPECT(falcon::counters_json(1, {}, {}).find("\"nr_throttled\":null") != std::string::npos);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  plans();
  programs(argv[0], argv[1]);
  reports();
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
