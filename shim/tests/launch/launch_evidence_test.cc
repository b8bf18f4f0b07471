// launch_evidence_test FOLDER: what the launcher reads from files and the kernel: programs, cgroups, kills, blocked
// threads. FOLDER is empty and ours.
#include <elf.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "command/program.h"
#include "common/files.h"
#include "generation/heartbeat.h"
#include "process/counters.h"
#include "process/oom.h"
#include "process/open_files.h"
#include "process/processes.h"
#include "process/schedules.h"
#include "process/volumes.h"

namespace {

constexpr int64_t kSecond = 1'000'000'000;
int failures = 0;

void expect(bool holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "launch_evidence_test.cc:%d: %s\n", line, what);
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

#if defined(__x86_64__)
constexpr Elf64_Half kOurs = EM_X86_64;
constexpr Elf64_Half kOther = EM_AARCH64;
#else
constexpr Elf64_Half kOurs = EM_AARCH64;
constexpr Elf64_Half kOther = EM_X86_64;
#endif

// The smallest file that names an interpreter; none where it is empty.
std::string elf(const std::string& interpreter, Elf64_Half machine = kOurs, unsigned char word = ELFCLASS64) {
  Elf64_Ehdr header{};
  memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = word;
  header.e_machine = machine;
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  Elf64_Phdr load{};
  load.p_type = PT_LOAD;
  Elf64_Phdr named{};
  named.p_type = interpreter.empty() ? PT_NOTE : PT_INTERP;
  named.p_offset = sizeof(header) + 2 * sizeof(Elf64_Phdr);
  named.p_filesz = interpreter.size() + 1;
  return bytes_of(header) + bytes_of(load) + bytes_of(named) + interpreter + '\0';
}

void programs(const std::string& folder) {
  const auto judged = [&](const std::string& content) {
    falcon::write_file(folder + "/program", content, 0755);
    return falcon::untracked_file(folder + "/program");
  };
  EXPECT(judged(elf("/lib64/ld-linux-x86-64.so.2")).empty());
  EXPECT(judged(elf("/nix/store/glibc/lib/ld-linux-aarch64.so.1")).empty());
  EXPECT(judged(elf("/lib/ld-musl-x86_64.so.1")) == "musl");
  EXPECT(judged(elf("")) == falcon::kStatic);
  EXPECT(judged(elf("/lib64/ld-linux-x86-64.so.2", kOther)) == "another machine");
  EXPECT(judged(elf("/lib/ld-linux.so.2", kOurs, ELFCLASS32)) == "another machine");
  EXPECT(judged("#!" + folder + "/python -u\nprint()\n").empty());  // nothing there: the loader will judge
  falcon::write_file(folder + "/python", elf("/lib/ld-musl-x86_64.so.1"), 0755);
  EXPECT(judged("#!" + folder + "/python -u\nprint()\n") == "musl");
  EXPECT(judged("#! " + folder + "/python\n") == "musl");
  EXPECT(judged("#!/usr/bin/env -S LANG=C " + folder + "/python -u\n") == "musl");
  EXPECT(judged("#!" + folder + "/program\n").empty());  // an endless chain ends
  EXPECT(judged("").empty() && judged("echo hello\n").empty());
  EXPECT(judged(elf("/lib/ld-musl-x86_64.so.1").substr(0, 70)).empty());  // cut short
}

void cgroup_v2(const std::string& folder) {
  falcon::make_folder(folder + "/v2");
  falcon::write_file(folder + "/v2/cgroup.controllers", "cpu memory\n");
  falcon::write_file(folder + "/v2/cpu.stat",
                     "usage_usec 7\nuser_usec 5\nsystem_usec 2\nnr_periods 4\nnr_throttled 3\nthrottled_usec 9\n");
  falcon::write_file(folder + "/v2/memory.current", "4096\n");
  falcon::write_file(folder + "/v2/memory.max", "8192\n");
  falcon::write_file(folder + "/v2/memory.stat", "anon 5\nactive_file 10\ninactive_file 20\nslab_reclaimable 7\n");
  falcon::write_file(folder + "/v2/memory.events", "low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n");
  falcon::write_file(folder + "/v2/cpu.pressure",
                     "some avg10=0.00 avg60=0.00 avg300=0.00 total=321\nfull avg10=0.00 avg60=0.00 total=5\n");
  falcon::write_file(folder + "/v2/pids.current", "12\n");
  falcon::write_file(folder + "/v2/pids.max", "max\n");
  falcon::write_file(folder + "/v2.self", "0::/\n");
  const falcon::CgroupCounters read = falcon::read_cgroup(folder + "/v2", folder + "/v2.self");
  EXPECT(read.cpu_usage_ns == 7000 && read.nr_periods == 4 && read.nr_throttled == 3 && read.throttled_ns == 9000);
  EXPECT(read.memory_limit_bytes == 8192 && read.memory_cache_bytes == 37);
  EXPECT(read.pids == 12 && !read.pids_limit);
  EXPECT(read.memory_bytes == 4096 && read.oom_kills == 1 && read.cpu_pressure_some_us == 321);
}

void free_memory(const std::string& folder) {
  constexpr int64_t kKiB = 1024;
  const std::string meminfo = folder + "/meminfo";
  falcon::write_file(meminfo, "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:   4000 kB\n");
  falcon::CgroupCounters cgroup;
  EXPECT(falcon::free_memory(cgroup, meminfo) == 4000 * kKiB);
  EXPECT(!falcon::free_memory(cgroup, folder + "/none"));
  cgroup.memory_bytes = 900 * kKiB;
  cgroup.memory_cache_bytes = 300 * kKiB;
  EXPECT(falcon::free_memory(cgroup, meminfo) == 4000 * kKiB);  // no limit
  cgroup.memory_limit_bytes = 1000 * kKiB;
  EXPECT(falcon::free_memory(cgroup, meminfo) == 400 * kKiB);  // what the kernel can take back counts as free
  EXPECT(falcon::free_memory(cgroup, folder + "/none") == 400 * kKiB);
  cgroup.memory_limit_bytes = INT64_MAX;  // how cgroup v1 says that there is none
  EXPECT(falcon::free_memory(cgroup, meminfo) == 4000 * kKiB);
}

void cgroup_v1(const std::string& folder) {
  for (const char* controller : {"/v1/cpu", "/v1/cpuacct", "/v1/memory/pod/x"}) {
    falcon::make_folder(folder + controller);
    falcon::write_file(folder + controller + "/cgroup.procs", "");
  }
  falcon::write_file(folder + "/v1/cpu/cpu.stat", "nr_periods 4\nnr_throttled 3\nthrottled_time 9\n");
  falcon::write_file(folder + "/v1/cpuacct/cpuacct.usage", "7\n");
  falcon::write_file(folder + "/v1/memory/pod/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 6\n");
  falcon::write_file(folder + "/v1/memory/pod/x/memory.stat", "active_file 1\ntotal_active_file 10\n");
  falcon::write_file(folder + "/v1.self", "9:name=systemd:/\n5:memory:/pod/x\n3:cpu,cpuacct:/host/path\n0::/\n");
  const falcon::CgroupCounters read = falcon::read_cgroup(folder + "/v1", folder + "/v1.self");
  EXPECT(read.nr_periods == 4 && read.nr_throttled == 3 && read.throttled_ns == 9 && read.cpu_usage_ns == 7);
  EXPECT(!read.memory_limit_bytes && !read.memory_cache_bytes);
  EXPECT(read.oom_kills == 6 && !read.memory_bytes && !read.cpu_pressure_some_us);
  const falcon::CgroupCounters nothing = falcon::read_cgroup(folder + "/nowhere", folder + "/v1.self");
  EXPECT(!nothing.nr_periods && !nothing.oom_kills && !nothing.cpu_usage_ns);
}

void volumes(const std::string& folder) {
  const std::vector<std::string> mounts = falcon::writable_mounts(
      "22 1 0:20 / / rw,relatime - overlay overlay rw\n"
      "23 22 0:21 / /proc rw - proc proc rw\n"
      "24 22 0:22 / /dev rw - tmpfs tmpfs rw\n"
      "25 24 0:23 / /dev/shm rw - tmpfs shm rw,size=65536k\n"
      "26 22 8:1 /a /my\\040data rw,noatime shared:1 master:2 - ext4 /dev/sda1 rw\n"
      "27 22 0:24 / /datasets ro,relatime - nfs4 server:/ rw\n"
      "28 22 0:25 / /falcon/run/launch rw - tmpfs tmpfs rw\n"
      "29 22 0:26 / /run/secrets/kubernetes.io/serviceaccount rw - tmpfs tmpfs rw\n"
      "cut short\n");
  EXPECT((mounts == std::vector<std::string>{"/dev/shm", "/my data", "/"}));
  const std::vector<falcon::Volume> read = falcon::read_volumes({folder, folder, folder + "/nowhere"});
  EXPECT(read.size() == 1 && read[0].path == folder && read[0].bytes > 0 && read[0].limit_bytes >= read[0].bytes);
}

void open_files() {
  const auto before = falcon::most_open_files(getpid(), falcon::list_processes());
  const int more[] = {dup(0), dup(0), dup(0)};
  const auto after = falcon::most_open_files(getpid(), falcon::list_processes());
  for (const int file : more) close(file);
  EXPECT(before && after && after->count == before->count + 3 && after->limit >= after->count);
}

void kills() {
  falcon::OomKills oom;
  oom.begin(5);
  EXPECT(!oom.explains(0) && oom.count() == 0);  // what was counted before is no evidence
  oom.note(5, kSecond);
  EXPECT(!oom.explains(kSecond));
  oom.note(7, 2 * kSecond);
  oom.note({}, 3 * kSecond);
  EXPECT(oom.count() == 2);
  EXPECT(oom.explains(3 * kSecond) && oom.explains(3 * kSecond) && !oom.explains(3 * kSecond));  // one end a kill
  oom.note(8, 10 * kSecond);
  EXPECT(!oom.explains(10 * kSecond + falcon::OomKills::kExplainsNs + 1));  // too long ago
  oom.begin(8);
  EXPECT(oom.count() == 0 && !oom.explains(11 * kSecond));
  falcon::OomKills unknown;
  unknown.begin({});
  unknown.note({}, 0);
  EXPECT(!unknown.explains(0) && !unknown.count());
  unknown.note(3, 0);  // the first reading is where the count begins
  EXPECT(!unknown.explains(0) && unknown.count() == 0);
}

void heartbeats() {
  falcon::Heartbeat agent(0);
  EXPECT(!agent.gone(60 * kSecond) && agent.gone(61 * kSecond));  // it never came
  agent.see(-5, 61 * kSecond);
  EXPECT(!agent.gone(100 * kSecond));
  agent.see(-5, 120 * kSecond);  // the same stamp is no sign of life
  EXPECT(agent.gone(122 * kSecond));
}

// A process in uninterruptible sleep: its child has not yet left the address space of its vfork.
pid_t start_blocked() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  if (syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0) {
    pause();
  }
  _exit(0);
}

pid_t start_sleeping() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  pause();
  _exit(0);
}

void wait_for_child_of(pid_t pid) {
  for (int i = 0; i < 2000 && falcon::descendants(pid, falcon::list_processes()).size() < 2; ++i) usleep(1000);
}

void blocked() {
  const pid_t blocked = start_blocked();
  const pid_t sleeping = start_sleeping();
  wait_for_child_of(blocked);
  usleep(20000);
  falcon::Schedules schedules;
  const auto at = [&](pid_t pid, int64_t seconds) {
    EXPECT(schedules.sample(pid, falcon::list_processes(), seconds * kSecond).has_value());
    return schedules.blocked_since(pid);
  };
  EXPECT(!at(blocked, 100) && !at(sleeping, 100));
  EXPECT(!at(blocked, 129) && !at(sleeping, 129));  // not long enough
  EXPECT(at(blocked, 140) == 100 * kSecond && !at(sleeping, 140));
  EXPECT(at(blocked, 141) == 100 * kSecond);  // between two looks
  EXPECT(!schedules.blocked_since(1));
  for (const pid_t pid : falcon::descendants(blocked, falcon::list_processes())) kill(pid, SIGKILL);
  kill(sleeping, SIGKILL);
  waitpid(blocked, nullptr, 0);
  waitpid(sleeping, nullptr, 0);
  EXPECT(schedules.sample(sleeping, falcon::list_processes(), 150 * kSecond).has_value());  // what it used, counts on
  EXPECT(!at(blocked, 150));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  const std::string folder = argv[1] + std::string("/") + std::to_string(getpid());
  if (!falcon::make_folder(folder)) return 73;
  programs(folder);
  cgroup_v2(folder);
  cgroup_v1(folder);
  free_memory(folder);
  volumes(folder);
  open_files();
  kills();
  heartbeats();
  blocked();
  std::filesystem::remove_all(folder);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
