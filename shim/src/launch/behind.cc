#include "behind.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "claim.h"
#include "clock.h"
#include "files.h"
#include "filling.h"
#include "moving.h"
#include "openers.h"
#include "report.h"
#include "tree.h"
#include "write_back.h"

namespace falcon {
namespace {

constexpr int64_t kLookNs = kSecondNs;
constexpr int64_t kStaleNs = kSecondNs / 10;  // while there is work, a look is no older
constexpr int64_t kAgainNs = kSecondNs;       // after an error
constexpr int kNice = 10;
constexpr unsigned kExchange = 2;  // RENAME_EXCHANGE
constexpr size_t kMostNames = 1 << 16;
constexpr size_t kMostText = 200;

volatile sig_atomic_t stop_asked = 0;
volatile sig_atomic_t rank_failed = 0;
volatile sig_atomic_t ended_well = 0;

void on_signal(int number) {
  if (number == SIGTERM) stop_asked = 1;
  if (number == SIGUSR1) ended_well = 1;
  if (number == SIGUSR2) rank_failed = 1;
}

void listen() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  for (const int number : {SIGTERM, SIGUSR1, SIGUSR2}) sigaction(number, &action, nullptr);
  for (const int number : {SIGINT, SIGHUP, SIGPIPE}) ::signal(number, SIG_IGN);  // a terminal's are the ranks'
}

// Ends early when a signal comes.
void pause_until(int64_t until_ns) {
  const int64_t left = until_ns - monotonic_ns();
  if (left > 0) poll(nullptr, 0, static_cast<int>(left / 1000000 + 1));
}

std::string plain(const std::string& text) {
  std::string out = text.substr(0, kMostText);
  std::replace_if(out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

std::string resolved(const std::string& path) {
  char found[PATH_MAX];
  return realpath(path.c_str(), found) != nullptr ? found : path;
}

std::string part_name(const BehindOptions& options) {
  return "r" + std::to_string(options.replica) + "." + std::to_string(getpid()) + "-" + std::to_string(unix_ns()) +
         ".part";
}

class Behind {
 public:
  explicit Behind(const BehindOptions& options)
      : options_(options),
        memory_(resolved(options.memory)),
        own_(options.folder + "/" + kOwnFolder),
        claim_(own_, options.owner, options.generation, options.replica),
        out_(memory_, options.folder, own_ + "/" + part_name(options), true, [this] { return still_ours(); }),
        in_(options.folder, memory_, aside(), false, [] { return true; }),
        back_({}, options.folder) {}

  int run();

 private:
  std::string fill();
  std::string carry_out(const std::vector<FillStep>& steps, int64_t until_ns);
  std::string take_over();
  void remove_parts() const;
  void follow();
  void flush();
  bool take_look();
  bool work();
  void make_room();
  bool replace(const std::string& path);
  bool still_ours();
  bool progress(int64_t bytes);
  bool is_paced() const;
  void tell(const std::string& text) const;
  void publish(const char* state);
  std::string aside() const { return memory_ + "/" + kOwnFolder + "/part"; }

  const BehindOptions& options_;
  std::string memory_;
  std::string own_;
  Claim claim_;
  Mover out_;
  Mover in_;
  WriteBack back_;
  std::set<Life> lives_;
  int64_t looks_ = 0;
  int64_t paced_until_ns_ = 0;
  int64_t flush_until_ns_ = 0;  // 0: the ranks run
  int64_t published_ns_ = 0;
  int64_t copied_ = 0;             // bytes of the file that is being copied
  bool looked_after_end_ = false;  // of all ranks, which have ended well
  bool lost_ = false;              // the folder is somebody else's
  std::string error_;
  std::string published_;
};

void Behind::tell(const std::string& text) const {
  if (options_.ready < 0) return;
  (void)!write(options_.ready, text.data(), text.size());
  close(options_.ready);
}

void Behind::publish(const char* state) {
  const auto [newest, modified_ns] = back_.newest();
  const Backlog backlog = back_.backlog();
  const std::string text =
      std::string("{\"version\":1,\"state\":\"") + state + "\",\"generation\":" + std::to_string(options_.generation) +
      ",\"files\":" + std::to_string(backlog.files) + ",\"bytes\":" + std::to_string(backlog.bytes - copied_) +
      ",\"used_bytes\":" + std::to_string(back_.used_bytes()) + ",\"linked\":" + std::to_string(back_.links()) +
      ",\"newest\":" + quoted(plain(newest)) + ",\"newest_unix_ns\":" + std::to_string(modified_ns) +
      ",\"error\":" + quoted(plain(error_)) + "}\n";
  published_ns_ = monotonic_ns();
  if (options_.status.empty() || text == published_) return;
  if (write_file(options_.status, text)) published_ = text;
}

bool Behind::still_ours() {
  if (!lost_ && !claim_.holds()) {
    lost_ = true;
    error_ = options_.folder + " is written by another job, or by a newer generation of this one";
  }
  return !lost_;
}

void Behind::remove_parts() const {
  const std::string mine = "r" + std::to_string(options_.replica) + ".";
  for (const std::string& name : list_files(own_, kMostNames)) {
    if (name.compare(0, mine.size(), mine) == 0) unlink((own_ + "/" + name).c_str());
  }
}

// Why the durable folder cannot be written; empty where it can.
std::string Behind::take_over() {
  for (size_t slash = own_.find('/', 1); slash != std::string::npos; slash = own_.find('/', slash + 1)) {
    mkdir(own_.substr(0, slash).c_str(), 0777);
  }
  if (mkdir(own_.c_str(), 0777) != 0 && errno != EEXIST) return own_ + ": " + strerror(errno);
  std::string error = claim_.take();
  if (error.empty()) remove_parts();
  return error;
}

std::string Behind::fill() {
  std::string error;
  const std::optional<Tree> durable = read_tree(options_.folder, &error);
  const std::optional<Tree> memory = durable ? read_tree(memory_, &error) : std::nullopt;
  if (!memory) return error;
  const int64_t until_ns = monotonic_ns() + options_.fill_seconds * kSecondNs;
  mkdir((memory_ + "/" + kOwnFolder).c_str(), 0700);
  error = carry_out(plan_fill(*durable, *memory, options_.folder, options_.memory_bytes / 2), until_ns);
  remove_all(memory_ + "/" + kOwnFolder);
  return error;
}

std::string Behind::carry_out(const std::vector<FillStep>& steps, int64_t until_ns) {
  const auto in_time = [&](int64_t) { return stop_asked == 0 && monotonic_ns() < until_ns; };
  for (const FillStep& step : steps) {
    if (stop_asked != 0) return "";
    Outcome outcome;
    switch (step.what) {
      case FillStep::What::kRemove:
        if (!remove_all(memory_ + "/" + step.path)) return memory_ + "/" + step.path + ": " + strerror(errno);
        break;
      case FillStep::What::kReplace:
        outcome = in_.put_link(step.path, options_.folder + "/" + step.path);
        break;
      case FillStep::What::kFetch:
        outcome = in_.put(step.path, step.entry, in_time);
        // No time, or no room: a link serves as well.
        if (outcome.how != Moved::kDone) outcome = in_.put_link(step.path, options_.folder + "/" + step.path);
        break;
      default:
        outcome = in_.put(step.path, step.entry, in_time);
    }
    if (outcome.how == Moved::kFailed) return outcome.error;
    if (monotonic_ns() - published_ns_ >= kLookNs) publish("Filling");
  }
  return "";
}

int Behind::run() {
  setpriority(PRIO_PROCESS, 0, kNice);
  publish("Filling");
  std::string error = take_over();
  if (error.empty() && !options_.resume) error = fill();
  const std::optional<Tree> memory = error.empty() ? read_tree(memory_, &error) : std::nullopt;
  std::optional<Tree> durable = memory && options_.resume ? read_tree(options_.folder, &error) : std::nullopt;
  if (!memory || (options_.resume && !durable)) {
    error_ = error;
    publish("Failed");
    tell(error);
    return 1;
  }
  Tree same = *memory;
  if (durable) {  // whatever differs is taken for changed
    for (auto at = same.begin(); at != same.end();) {
      const auto copy = durable->find(at->first);
      at = copy != durable->end() && is_copy(at->second, copy->second) ? std::next(at) : same.erase(at);
    }
  }
  back_ = WriteBack(std::move(same), options_.folder);
  lives_ = living(getppid());
  take_look();
  publish("Following");
  tell("ok");
  follow();
  flush();
  return 0;
}

// False where the folder could not be read.
bool Behind::take_look() {
  const bool well = ended_well != 0;  // before the look, which then sees all that was written
  const std::optional<Tree> before = read_tree(memory_, &error_);
  std::optional<Tree> tree = before ? read_tree(memory_, &error_) : std::nullopt;
  if (!tree) return false;
  Look look;
  look.number = ++looks_;
  look.tree = std::move(*tree);
  for (const auto& [path, entry] : look.tree) {
    const auto found = before->find(path);
    if (found == before->end() || !unchanged(found->second, entry)) look.moving.insert(path);
  }
  if (!back_.is_durable(look.tree)) look.writing = open_for_writing(memory_);  // it costs more than the rest
  std::set<Life> lives = living(getppid());
  look.somebody_gone = !std::includes(lives.begin(), lives.end(), lives_.begin(), lives_.end());
  lives_ = std::move(lives);
  look.now_ns = monotonic_ns();
  if (rank_failed != 0) back_.fail();
  if (well) back_.end_well();
  looked_after_end_ = well;
  back_.look(std::move(look), [this](const std::string& path) { return ends_as_whole(memory_ + "/" + path); });
  return true;
}

void Behind::follow() {
  while (stop_asked == 0) {
    const int64_t next_ns = monotonic_ns() + kLookNs;
    bool more = false;
    if (take_look()) {
      more = work() && back_.next() && !lost_;
      make_room();
    }
    publish(looked_after_end_ && back_.backlog().files == 0 ? "Ended" : "Following");
    const int64_t until_ns = more ? monotonic_ns() + kStaleNs / 10 : next_ns;
    while (stop_asked == 0 && monotonic_ns() < until_ns) pause_until(until_ns);
  }
}

// Does steps until there are none, or the look is stale: what names a file may have changed while that was copied.
// False after an error.
bool Behind::work() {
  const int64_t until_ns = monotonic_ns() + kStaleNs;
  while (const std::optional<Step> step = back_.next()) {
    if (lost_ || monotonic_ns() >= until_ns) break;
    copied_ = 0;
    const Outcome outcome = step->what == Step::What::kRemove
                                ? out_.remove(step->path)
                                : out_.put(step->path, step->entry, [this](int64_t bytes) { return progress(bytes); });
    copied_ = 0;
    if (outcome.how == Moved::kFailed) error_ = outcome.error;
    if (outcome.how != Moved::kDone) return outcome.how != Moved::kFailed;
    error_.clear();
    back_.done(*step);
  }
  return true;
}

bool Behind::progress(int64_t bytes) {
  copied_ += bytes;
  const int64_t now = monotonic_ns();
  if (options_.bytes_per_second > 0) {
    const double seconds = static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second);
    paced_until_ns_ = std::max(paced_until_ns_, now) + static_cast<int64_t>(seconds * static_cast<double>(kSecondNs));
  }
  do {
    if (flush_until_ns_ != 0 && monotonic_ns() >= flush_until_ns_) return false;
    if (monotonic_ns() - published_ns_ >= kLookNs) publish(flush_until_ns_ != 0 ? "Flushing" : "Following");
    if (!is_paced()) return true;
    pause_until(std::min(paced_until_ns_, monotonic_ns() + kLookNs));
  } while (true);
}

// Nobody who still trains is to be disturbed; nothing else waits.
bool Behind::is_paced() const {
  return options_.bytes_per_second > 0 && stop_asked == 0 && ended_well == 0 && monotonic_ns() < paced_until_ns_;
}

// Half of the memory is kept free for what comes next.
void Behind::make_room() {
  for (const std::string& path : back_.replaceable(options_.memory_bytes / 2)) {
    if (stop_asked != 0 || !replace(path)) return;
  }
}

// A process that opens the file while it is replaced is seen afterwards, and gets it back.
bool Behind::replace(const std::string& path) {
  const std::string file = memory_ + "/" + path;
  const std::string target = options_.folder + "/" + path;
  const std::optional<Entry> before = read_entry(file);
  const std::optional<Entry> durable = read_entry(target);
  if (!before || !durable || !is_copy(*before, *durable)) return false;
  mkdir((memory_ + "/" + kOwnFolder).c_str(), 0700);
  const auto exchange = [&] {
    return syscall(SYS_renameat2, AT_FDCWD, aside().c_str(), AT_FDCWD, file.c_str(), kExchange) == 0;
  };
  bool done = symlink(target.c_str(), aside().c_str()) == 0 && exchange();
  if (done) {
    const std::set<std::string> writing = open_for_writing(memory_);
    const std::optional<Entry> now = read_entry(aside());
    if (!now || !unchanged(*before, *now) || writing.count(std::string(kOwnFolder) + "/part") != 0) {
      done = false;
      if (!exchange()) return false;  // the name has a newer file meanwhile: then this one is not wanted
    }
  }
  unlink(aside().c_str());
  rmdir((memory_ + "/" + kOwnFolder).c_str());
  return done;
}

// The ranks are dead.
void Behind::flush() {
  flush_until_ns_ = monotonic_ns() + options_.flush_seconds * kSecondNs;
  if (ended_well == 0) back_.fail();
  while (take_look() && !lost_) {
    const bool worked = work();
    if (worked && !back_.next()) break;
    publish("Flushing");
    if (monotonic_ns() >= flush_until_ns_) break;
    if (!worked) pause_until(monotonic_ns() + kAgainNs);
  }
  const Backlog left = back_.backlog();
  if (left.files > 0) {
    fprintf(stderr,
            "falcon-launch: %lld changes in %s (%lld bytes) are given up: cut off, or not copied to %s in %d s%s%s\n",
            static_cast<long long>(left.files), options_.memory.c_str(), static_cast<long long>(left.bytes),
            options_.folder.c_str(), options_.flush_seconds, error_.empty() ? "" : "; ", error_.c_str());
  }
  publish("Flushed");
}

}  // namespace

int keep_behind(const BehindOptions& options) {
  listen();
  return Behind(options).run();
}

}  // namespace falcon
