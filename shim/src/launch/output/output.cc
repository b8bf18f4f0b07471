#include "output/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "common/clock.h"

namespace falcon {
namespace {

constexpr size_t kLineBytes = 1024 * 1024;
constexpr int64_t kPartialNs = 5 * kSecondNs;  // a line that has not ended: a prompt, a bar
constexpr size_t kChunkBytes = 256 * 1024;
constexpr int kPipeBytes = 1024 * 1024;

void write_all(int to, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t done = write(to, bytes, count);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EAGAIN) {
      pollfd ready{to, POLLOUT, 0};
      poll(&ready, 1, -1);
      continue;
    }
    if (done < 0) return;  // our output is no longer read; the rank must not notice
    bytes += done;
    count -= static_cast<size_t>(done);
  }
}

// Where the last whole line ends. A carriage return at the very end may be half of one's end.
size_t lines_end(const std::string& text) {
  size_t end = text.size();
  if (end > 0 && text[end - 1] == '\r') --end;
  while (end > 0 && text[end - 1] != '\n' && text[end - 1] != '\r') --end;
  return end;
}

// How many bytes can be read at once.
int waiting_bytes(int from) {
  int bytes = 0;
  return ioctl(from, FIONREAD, &bytes) == 0 ? bytes : 0;
}

}  // namespace

Output::Output(const std::string& folder) : folder_(folder), printed_(folder + "/printed") {
  if (pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) wake_[0] = wake_[1] = -1;
  thread_ = std::thread([this] { pump(); });
}

Output::~Output() {
  ending_ = true;
  wake();
  thread_.join();
  close(wake_[0]);
  close(wake_[1]);
}

Output::Pipes Output::make_pipes() {
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return {};
  if (pipe2(err, O_CLOEXEC) != 0) {
    close(out[0]);
    close(out[1]);
    return {};
  }
  for (const int end : {out[0], err[0]}) {
    fcntl(end, F_SETPIPE_SZ, kPipeBytes);
    fcntl(end, F_SETFL, O_NONBLOCK);
  }
  return {{out[0], err[0]}, {out[1], err[1]}};
}

Output::Ends Output::add(int generation, int local_rank, bool whole_lines) {
  const Pipes pipes = make_pipes();
  if (pipes.read.out >= 0) add(pipes.read, generation, local_rank, whole_lines);
  return pipes.write;
}

void Output::add(const Ends& read, int generation, int local_rank, bool whole_lines) {
  const std::shared_ptr<OutputFile> file = make_file(generation, local_rank);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [from, to] : {std::pair{read.out, STDOUT_FILENO}, std::pair{read.err, STDERR_FILENO}}) {
      streams_.push_back(std::make_shared<Stream>());
      streams_.back()->from = from;
      streams_.back()->to = to;
      streams_.back()->local_rank = local_rank;
      streams_.back()->whole_lines = whole_lines;
      streams_.back()->file = file;
    }
    open_ += 2;
  }
  wake();
}

std::shared_ptr<OutputFile> Output::make_file(int generation, int local_rank) {
  auto file = std::make_shared<OutputFile>();
  const std::string path = folder_ + "/output." + std::to_string(local_rank);
  if (!file->make(path, generation, local_rank) && !refusal_told_) {
    refusal_told_ = true;
    fprintf(stderr, "falcon-launch: cannot make %s (%s): the agent cannot read what the ranks print\n", path.c_str(),
            strerror(errno));
  }
  return file;
}

bool Output::unread(int local_rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(), [&](const std::shared_ptr<Stream>& stream) {
    return stream->local_rank == local_rank && (stream->moving || waiting_bytes(stream->from) > 0);
  });
}

void Output::settle(int local_rank, int milliseconds) {
  for (; milliseconds > 0 && unread(local_rank); milliseconds -= 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void Output::drain(int milliseconds) {
  for (; milliseconds > 0 && open_ > 0; milliseconds -= 5) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void Output::wake() { (void)!write(wake_[1], "", 1); }

void Output::pump() {
  std::vector<pollfd> polled;
  Streams streams;
  while (!ending_ || open_ > 0) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      streams = streams_;
    }
    polled.assign(1, {wake_[0], POLLIN, 0});
    for (const auto& stream : streams) polled.push_back({stream->from, POLLIN, 0});
    const int ready = poll(polled.data(), polled.size(), wait_ms(streams));
    if (ready == 0 && ending_) return;  // what is still open belongs to a process that we leave behind
    char ignored[64];
    while (read(wake_[0], ignored, sizeof(ignored)) > 0) {
    }
    // Without the lock: a write to our own stdout may block, and must not block a thread that adds a rank.
    for (size_t i = 0; i < streams.size(); ++i) serve(streams[i], polled[i + 1].revents != 0);
    printed_.tell(monotonic_ns());
  }
}

int Output::wait_ms(const Streams& streams) const {
  if (ending_) return 100;
  const int partial = partial_ms(streams);
  const int untold = printed_.wait_ms(monotonic_ns());
  return partial < 0 || untold < 0 ? std::max(partial, untold) : std::min(partial, untold);
}

int Output::partial_ms(const Streams& streams) const {
  const bool partial = std::any_of(streams.begin(), streams.end(),
                                   [](const std::shared_ptr<Stream>& stream) { return !stream->pending.empty(); });
  return partial ? 250 : -1;
}

void Output::serve(const std::shared_ptr<Stream>& stream, bool readable) {
  if (readable) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stream->moving = true;
    }
    const bool more = move_lines(stream.get());
    stream->moving = false;
    if (!more) {
      const std::lock_guard<std::mutex> lock(mutex_);
      streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
      close(stream->from);
      --open_;
      return;
    }
  }
  if (stream->pending.empty() || monotonic_ns() - stream->pending_since_ns < kPartialNs) return;
  write_all(stream->to, stream->pending.data(), stream->pending.size());
  stream->pending.clear();
}

bool Output::move_lines(Stream* stream) {
  bool more = move(stream);
  // A pipe holds several chunks. Where one ends within a line, the rest may be there already, and the next words of the
  // other stream would stand between them.
  for (int n = 1; more && n < kPipeBytes / static_cast<int>(kChunkBytes); ++n) {
    if (!stream->file->within_line() || waiting_bytes(stream->from) == 0) break;
    more = move(stream);
  }
  return more;
}

bool Output::move(Stream* stream) {
  static thread_local std::vector<char> chunk(kChunkBytes);
  const ssize_t count = read(stream->from, chunk.data(), chunk.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  const auto size = static_cast<size_t>(count);
  if (size > 0) {
    stream->file->append(stream->to, chunk.data(), size);
    printed_.note(monotonic_ns());  // before our own output, on which we may wait
  }
  if (!stream->whole_lines) {
    write_all(stream->to, chunk.data(), size);
    return size > 0;
  }
  if (stream->pending.empty()) stream->pending_since_ns = monotonic_ns();
  stream->pending.append(chunk.data(), size);
  size_t whole = lines_end(stream->pending);
  if (size == 0 || stream->pending.size() - whole > kLineBytes) whole = stream->pending.size();
  if (whole == 0) return size > 0;
  write_all(stream->to, stream->pending.data(), whole);
  stream->pending.erase(0, whole);
  stream->pending_since_ns = monotonic_ns();
  return size > 0;
}

}  // namespace falcon
