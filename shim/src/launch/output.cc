#include "output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace falcon {
namespace {

constexpr size_t kTailBytes = 64 * 1024;
constexpr size_t kLineBytes = 64 * 1024;
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
    if (done < 0) return;  // nobody reads our output any more; the rank must not notice
    bytes += done;
    count -= static_cast<size_t>(done);
  }
}

}  // namespace

Output::Output() {
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

Output::Ends Output::add(int local_rank, bool whole_lines) {
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
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.push_back({out[0], STDOUT_FILENO, local_rank, whole_lines, {}});
    streams_.push_back({err[0], STDERR_FILENO, local_rank, whole_lines, {}});
    open_ += 2;
    open_of_[local_rank] += 2;
  }
  wake();
  return {out[1], err[1]};
}

std::string Output::take_tail(int local_rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Tail& tail = tails_[local_rank];
  if (!tail.fresh) return {};
  tail.fresh = false;
  return tail.bytes;
}

void Output::reset_tails() {
  const std::lock_guard<std::mutex> lock(mutex_);
  tails_.clear();
}

bool Output::unread(int local_rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int resting = 0;
  for (const Stream& stream : streams_) {
    if (stream.local_rank != local_rank) continue;
    int bytes = 0;
    if (ioctl(stream.from, FIONREAD, &bytes) == 0 && bytes > 0) return true;
    ++resting;
  }
  return resting < open_of_[local_rank];
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
  while (!ending_ || open_ > 0) {
    polled.assign(1, {wake_[0], POLLIN, 0});
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const Stream& stream : streams_) polled.push_back({stream.from, POLLIN, 0});
    }
    const int ready = poll(polled.data(), polled.size(), ending_ ? 100 : -1);
    if (ready == 0 && ending_) return;  // what is still open belongs to a process that we leave behind
    char ignored[64];
    while (read(wake_[0], ignored, sizeof(ignored)) > 0) {
    }
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      Stream taken;
      {
        // Taken out while it is moved: a write to our own stdout may block, and must not block whoever adds a rank.
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = std::find_if(streams_.begin(), streams_.end(),
                                        [&](const Stream& stream) { return stream.from == polled[i].fd; });
        if (found == streams_.end()) continue;
        taken = std::move(*found);
        streams_.erase(found);
      }
      const bool more = move(&taken);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (more) {
        streams_.push_back(std::move(taken));
      } else {
        close(taken.from);
        --open_of_[taken.local_rank];
        --open_;
      }
    }
  }
}

bool Output::move(Stream* stream) {
  static thread_local std::vector<char> chunk(kChunkBytes);
  const ssize_t count = read(stream->from, chunk.data(), chunk.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  const auto size = static_cast<size_t>(count);
  if (size > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Tail& tail = tails_[stream->local_rank];
    const size_t kept = std::min(size, kTailBytes);
    tail.bytes.append(chunk.data() + (size - kept), kept);
    if (tail.bytes.size() > kTailBytes) tail.bytes.erase(0, tail.bytes.size() - kTailBytes);
    tail.fresh = true;
  }
  if (!stream->whole_lines) {
    write_all(stream->to, chunk.data(), size);
    return size > 0;
  }
  stream->pending.append(chunk.data(), size);
  const size_t newline = stream->pending.rfind('\n');
  size_t whole = newline == std::string::npos ? 0 : newline + 1;
  if (size == 0 || stream->pending.size() - whole > kLineBytes) whole = stream->pending.size();
  write_all(stream->to, stream->pending.data(), whole);
  stream->pending.erase(0, whole);
  return size > 0;
}

}  // namespace falcon
