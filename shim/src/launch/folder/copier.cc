#include "folder/copier.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "common/clock.h"
#include "common/files.h"
#include "folder/copy.h"
#include "folder/writers.h"
#include "wire/report.h"

namespace falcon {
namespace {

constexpr int64_t kLookNs = kSecondNs;
constexpr int64_t kSoonNs = kSecondNs / 100;  // there is work
constexpr int64_t kAnswerNs = kSecondNs / 4;  // other replicas are waited for
constexpr int64_t kLookShare = 10;            // a look takes at most this part of the time, then
constexpr int64_t kAgainNs = kSecondNs;       // after an error
constexpr int kNice = 10;
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

class Behind {
 public:
  explicit Behind(const BehindOptions& options)
      : options_(options), memory_(resolved(options.memory)), copy_(copy_options(), surroundings()) {}

  int run();

 private:
  CopyOptions copy_options() const;
  Surroundings surroundings();
  void follow();
  void flush();
  Round round();
  bool somebody_gone();
  bool progress(int64_t bytes);
  bool is_paced() const;
  void tell(const std::string& text) const;
  void publish(const char* state);

  const BehindOptions& options_;
  std::string memory_;
  std::set<Life> lives_;
  int64_t paced_until_ns_ = 0;
  int64_t fill_until_ns_ = 0;
  int64_t flush_until_ns_ = 0;  // 0: the ranks run
  int64_t published_ns_ = 0;
  int64_t copied_ = 0;             // bytes of the file that is being copied
  bool looked_after_end_ = false;  // of all ranks, which have ended well
  std::string error_;              // of the start
  std::string published_;
  FolderCopy copy_;
};

CopyOptions Behind::copy_options() const {
  CopyOptions options;
  options.memory = memory_;
  options.folder = options_.folder;
  options.owner = options_.owner;
  options.memory_bytes = options_.memory_bytes;
  options.generation = options_.generation;
  options.replica = options_.replica;
  options.replicas = options_.replicas;
  return options;
}

Surroundings Behind::surroundings() {
  Surroundings given;
  given.now_ns = monotonic_ns;
  given.pause = [](int64_t ns) { pause_until(monotonic_ns() + ns); };
  given.writing = [this] { return open_for_writing(memory_); };
  given.somebody_gone = [this] { return somebody_gone(); };
  given.ends_as_whole = [this](const std::string& path) { return ends_as_whole(joined(memory_, path)); };
  given.progress = [this](int64_t bytes) { return progress(bytes); };
  given.goes_on = [this] {
    if (monotonic_ns() - published_ns_ >= kLookNs && fill_until_ns_ != 0) publish("Filling");
    return stop_asked == 0;
  };
  given.in_time = [this] { return monotonic_ns() < fill_until_ns_; };
  return given;
}

bool Behind::somebody_gone() {
  std::set<Life> lives = living(getppid());
  const bool gone = !std::includes(lives.begin(), lives.end(), lives_.begin(), lives_.end());
  lives_ = std::move(lives);
  return gone;
}

void Behind::tell(const std::string& text) const {
  if (options_.ready < 0) return;
  (void)!write(options_.ready, text.data(), text.size());
  close(options_.ready);
}

void Behind::publish(const char* state) {
  const WriteBack& back = copy_.back();
  const auto [newest, modified_ns] = back.newest();
  const Backlog backlog = back.backlog();
  const std::string text =
      std::string("{\"version\":1,\"state\":\"") + state + "\",\"generation\":" + std::to_string(options_.generation) +
      ",\"files\":" + std::to_string(backlog.files) +
      ",\"bytes\":" + std::to_string(std::max<int64_t>(0, backlog.bytes - copied_)) +
      ",\"used_bytes\":" + std::to_string(back.used_bytes()) + ",\"linked\":" + std::to_string(back.links()) +
      ",\"newest\":" + quoted(plain(newest)) + ",\"newest_unix_ns\":" + std::to_string(modified_ns) +
      ",\"error\":" + quoted(plain(error_.empty() ? copy_.error() : error_)) + "}\n";
  published_ns_ = monotonic_ns();
  if (options_.status.empty() || text == published_) return;
  if (write_file(options_.status, text)) published_ = text;
}

int Behind::run() {
  setpriority(PRIO_PROCESS, 0, kNice);
  publish("Filling");
  lives_ = living(getppid());
  fill_until_ns_ = monotonic_ns() + options_.fill_seconds * kSecondNs;
  error_ = copy_.begin(options_.resume);
  fill_until_ns_ = 0;
  if (!error_.empty()) {
    publish("Failed");
    tell(error_);
    return 1;
  }
  round();
  publish("Following");
  tell("ok");
  follow();
  flush();
  return 0;
}

Round Behind::round() {
  const bool well = ended_well != 0;  // before the look, which then sees all that was written
  if (rank_failed != 0) copy_.fail();
  if (well) copy_.end_well();
  copied_ = 0;
  const Round round = copy_.round();
  copied_ = 0;
  if (round.looked) looked_after_end_ = well;
  return round;
}

void Behind::follow() {
  while (stop_asked == 0) {
    const int64_t begun_ns = monotonic_ns();
    const Round done = round();
    if (done.looked && !done.more && stop_asked == 0) copy_.make_room();
    publish(looked_after_end_ && copy_.back().backlog().files == 0 ? "Ended" : "Following");
    int64_t until_ns = begun_ns + kLookNs;
    const int64_t now = monotonic_ns();
    if (done.waiting || copy_.is_asked()) until_ns = now + std::max(kAnswerNs, kLookShare * (now - begun_ns));
    if (done.more && !copy_.is_lost()) until_ns = now + kSoonNs;
    while (stop_asked == 0 && monotonic_ns() < until_ns) pause_until(until_ns);
  }
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
    if (monotonic_ns() - published_ns_ >= kLookNs) {
      publish(flush_until_ns_ != 0 ? "Flushing" : "Following");
      copy_.show_life();
    }
    if (!is_paced()) return true;
    pause_until(std::min(paced_until_ns_, monotonic_ns() + kLookNs));
  } while (true);
}

// No rank that still trains is to be disturbed; nothing else waits.
bool Behind::is_paced() const {
  return options_.bytes_per_second > 0 && stop_asked == 0 && ended_well == 0 && monotonic_ns() < paced_until_ns_;
}

// The ranks are dead.
void Behind::flush() {
  flush_until_ns_ = monotonic_ns() + options_.flush_seconds * kSecondNs;
  if (ended_well != 0) copy_.end_well();
  copy_.flush();
  while (true) {
    const Round done = round();
    publish("Flushing");
    if (copy_.is_lost() || monotonic_ns() >= flush_until_ns_) break;
    if (done.looked && !done.more && !done.waiting && !done.failing) break;
    if (!done.more) pause_until(monotonic_ns() + (done.failing || !done.looked ? kAgainNs : kAnswerNs));
  }
  copy_.leave();
  const Backlog left = copy_.back().backlog();
  if (left.files > 0) {
    fprintf(
        stderr,
        "falcon-launch: %lld changes in %s (%lld bytes) are given up: cut off, or not copied to %s in %d s%s%s%s%s\n",
        static_cast<long long>(left.files), options_.memory.c_str(), static_cast<long long>(left.bytes),
        options_.folder.c_str(), options_.flush_seconds, copy_.unfinished().empty() ? "" : ": ",
        copy_.unfinished().c_str(), copy_.error().empty() ? "" : "; ", copy_.error().c_str());
  }
  publish("Flushed");
}

}  // namespace

int keep_behind(const BehindOptions& options) {
  listen();
  return Behind(options).run();
}

}  // namespace falcon
