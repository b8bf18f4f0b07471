// falcon-launch: runs and restarts the training processes of one pod (docs/architecture.md §3). Static, so that it runs
// in any image.

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/files.h"
#include "folder/copier.h"
#include "generation/supervisor.h"
#include "measurement/bench.h"
#include "rescue/rescue.h"

namespace {

constexpr int kUsage = 64;  // EX_USAGE
constexpr char kHelp[] =
    "falcon-launch run [options] -- COMMAND [ARGUMENT …]   run the training processes under the agent's plan\n"
    "  --run-dir DIR         shared with the agent (default /falcon/run)\n"
    "  --procs N             training processes, where the plan does not say (default 1)\n"
    "  --launcher falcon|own own: COMMAND is torchrun, mpirun …; it is run once (default falcon)\n"
    "  --grace-seconds S     between SIGTERM and SIGKILL when the pod ends (default: the kubelet's)\n"
    "  --restart-grace-seconds S  the same when a generation ends, for processes that handle SIGTERM (default 30)\n"
    "  --shim PATH|off       preloaded into the ranks (default libfalcon_shim.so beside this program)\n"
    "  --python DIR          for the ranks' interpreters: falcon_site first, the folder last on PYTHONPATH\n"
    "  --directory DIR       in memory: filled from --directory-folder before the ranks start, and copied there behind "
    "them\n"
    "  --directory-folder DIR, --directory-bytes N, --directory-owner UID, --directory-bytes-per-second N (default 0: "
    "no limit)\n"
    "falcon-launch install DIR   copy this program, the shim and the python folder into DIR\n"
    "falcon-launch bench MILLISECONDS   what the permitted CPUs do, as JSON: the check where there is no Python for "
    "it\n"
    "falcon-launch smoke   the same in a fifth of a second, without copies: the test beside a restart\n"
    "falcon-launch version | --help\n";

std::string own_folder() {
  char path[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return ".";
  const std::string program(path, static_cast<size_t>(length));
  return program.substr(0, program.rfind('/'));
}

int fail(const std::string& message) {
  fprintf(stderr, "falcon-launch: %s\n%s", message.c_str(), kHelp);
  return kUsage;
}

bool parse_number(const char* text, int least, int* value) {
  char* end = nullptr;
  const long parsed = strtol(text, &end, 10);
  if (end == text || *end != '\0' || parsed < least || parsed > 100000) return false;
  *value = static_cast<int>(parsed);
  return true;
}

bool parse_bytes(const char* text, int64_t* value) {
  char* end = nullptr;
  errno = 0;
  const long long parsed = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || parsed < 0 || errno != 0) return false;
  *value = parsed;
  return true;
}

// An option of a folder that is copied behind; false where it is none, `*valid` false where its value is wrong.
bool take_directory_option(const std::string& name, const char* value, falcon::Options* options, bool* valid) {
  if (name == "--directory") {
    options->directory = value;
  } else if (name == "--directory-folder") {
    options->directory_folder = value;
  } else if (name == "--directory-owner") {
    options->directory_owner = value;
  } else if (name == "--directory-bytes") {
    *valid = parse_bytes(value, &options->directory_bytes);
  } else if (name == "--directory-bytes-per-second") {
    *valid = parse_bytes(value, &options->directory_bytes_per_second);
  } else {
    return false;
  }
  return true;
}

int install(const std::string& folder) {
  const std::string from = own_folder();
  const bool done = falcon::make_folder(folder) &&
                    falcon::copy_file(from + "/falcon-launch", folder + "/falcon-launch", 0755) &&
                    falcon::copy_file(from + "/libfalcon_shim.so", folder + "/libfalcon_shim.so", 0644) &&
                    falcon::copy_folder(from + "/python", folder + "/python");
  if (!done)
    fprintf(stderr, "falcon-launch: cannot copy from %s to %s: %s\n", from.c_str(), folder.c_str(), strerror(errno));
  return done ? 0 : 1;
}

int run(int argc, char** argv) {
  falcon::Options options;
  options.shim = own_folder() + "/libfalcon_shim.so";
  int at = 2;
  for (; at < argc && strcmp(argv[at], "--") != 0; at += 2) {
    const std::string name = argv[at];
    if (at + 1 >= argc) return fail(name + " needs a value");
    const char* value = argv[at + 1];
    bool valid = true;
    if (take_directory_option(name, value, &options, &valid)) {
      if (!valid) return fail(name + ": want a number of bytes");
    } else if (name == "--run-dir") {
      options.run_dir = value;
    } else if (name == "--shim") {
      options.shim = value;
    } else if (name == "--python") {
      options.python = value;
    } else if (name == "--procs") {
      if (!parse_number(value, 1, &options.procs)) return fail("--procs: want a whole number of at least 1");
    } else if (name == "--grace-seconds") {
      if (!parse_number(value, 0, &options.grace_seconds)) return fail("--grace-seconds: want a whole number");
    } else if (name == "--restart-grace-seconds") {
      if (!parse_number(value, 0, &options.restart_grace_seconds)) return fail(name + ": want a whole number");
    } else if (name == "--launcher") {
      if (strcmp(value, "own") != 0 && strcmp(value, "falcon") != 0) return fail("--launcher: want falcon or own");
      options.own = strcmp(value, "own") == 0;
    } else {
      return fail("unknown option " + name);
    }
  }
  for (++at; at < argc; ++at) options.command.emplace_back(argv[at]);
  if (options.command.empty()) return fail("no command: put it after --");
  const char* store = getenv("FALCON_CHECKPOINT_DIR");
  if (store != nullptr) options.store = store;
  falcon::block_signals();
  return falcon::Supervisor(options).run();
}

// The launcher's own process: its words are checked, and not explained.
int behind(int argc, char** argv) {
  falcon::BehindOptions options;
  for (int at = 2; at + 1 < argc; at += 2) {
    const std::string name = argv[at];
    const char* value = argv[at + 1];
    bool valid = true;
    if (name == "--memory") {
      options.memory = value;
    } else if (name == "--folder") {
      options.folder = value;
    } else if (name == "--owner") {
      options.owner = value;
    } else if (name == "--status") {
      options.status = value;
    } else if (name == "--memory-bytes") {
      valid = parse_bytes(value, &options.memory_bytes);
    } else if (name == "--bytes-per-second") {
      valid = parse_bytes(value, &options.bytes_per_second);
    } else if (name == "--generation") {
      valid = parse_number(value, 0, &options.generation);
    } else if (name == "--replica") {
      valid = parse_number(value, 0, &options.replica);
    } else if (name == "--replicas") {
      valid = parse_number(value, 0, &options.replicas);
    } else if (name == "--flush-seconds") {
      valid = parse_number(value, 0, &options.flush_seconds);
    } else if (name == "--ready") {
      valid = parse_number(value, 0, &options.ready);
    } else if (name == "--resume") {
      options.resume = strcmp(value, "yes") == 0;
    } else {
      valid = false;
    }
    if (!valid) return fail("behind: " + name + " " + value);
  }
  if (options.memory.empty() || options.folder.empty()) return fail("behind: it needs --memory and --folder");
  return falcon::keep_behind(options);
}

int bench(const char* text) {
  int milliseconds = 0;
  if (!parse_number(text, 1, &milliseconds)) return fail("bench: want milliseconds, 1 to 100000");
  return printf("%s", falcon::bench_json(milliseconds).c_str()) < 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 2 && strcmp(argv[1], "run") == 0) return run(argc, argv);
  if (argc >= 2 && strcmp(argv[1], "behind") == 0) return behind(argc, argv);
  if (argc == 3 && strcmp(argv[1], "rescue") == 0) return falcon::rescue(argv[2]);
  if (argc == 3 && strcmp(argv[1], "install") == 0) return install(argv[2]);
  if (argc == 3 && strcmp(argv[1], "bench") == 0) return bench(argv[2]);
  if (argc == 2 && strcmp(argv[1], "smoke") == 0) return printf("%s", falcon::smoke_json().c_str()) < 0;
  if (argc == 2 && (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0))
    return printf("falcon-launch %s\n", FALCON_VERSION) < 0;
  if (argc == 2 && strcmp(argv[1], "--help") == 0) return printf("%s", kHelp) < 0;
  return fail("want run, install, bench, smoke, version or --help");
}
