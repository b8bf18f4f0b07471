// The ranks' output: passed through as it comes, and its last bytes kept for the classifier.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace falcon {

// One thread moves bytes from the ranks' pipes to our own stdout and stderr, every byte as it is. With one rank they
// pass at once; with several, a line (to a newline or carriage return) is never cut by another rank's, except where it
// is longer than 1 MiB or has not ended after five seconds.
class Output {
 public:
  Output();
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Write ends for a new process; the caller closes them after the fork.
  struct Ends {
    int out = -1;
    int err = -1;
  };
  Ends add(int local_rank, bool whole_lines);

  // The last bytes of a rank's output, both streams as they came; empty if nothing is new since the last call.
  std::string take_tail(int local_rank);

  // Waits until what a rank has written by now has been read, at most `milliseconds`: its last words precede the news
  // of its end. A grandchild may hold the pipe open, so the end of the stream is not waited for.
  void settle(int local_rank, int milliseconds);

  // Forgets the tails: a new generation begins.
  void reset_tails();

  // Waits, at most `milliseconds`, until the pipes that are closed on the far side have been read to the end.
  void drain(int milliseconds);

 private:
  struct Stream {
    int from;
    int to;
    int local_rank;
    bool whole_lines;
    std::string pending;
    int64_t pending_since_ns = 0;
    std::atomic<bool> moving{false};  // bytes are out of the pipe and not yet in the tail
  };

  using Streams = std::vector<std::shared_ptr<Stream>>;

  struct Tail {
    std::string bytes;
    bool fresh = false;
  };

  void pump();
  bool unread(int local_rank);
  int wait_ms(const Streams& streams) const;
  void serve(const std::shared_ptr<Stream>& stream, bool readable);
  bool move(Stream* stream);  // false at the end of the stream
  void keep(int local_rank, const char* bytes, size_t size);
  void wake();

  std::mutex mutex_;
  Streams streams_;
  std::map<int, Tail> tails_;
  std::atomic<int> open_{0};
  int wake_[2];
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace falcon
