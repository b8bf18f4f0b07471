// The ranks' output: passed through as it comes, and its last bytes kept for the classifier.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace falcon {

// One thread moves bytes from the ranks' pipes to our own stdout and stderr. With one rank they pass unchanged; with
// several, a line is never cut by another rank's (lines longer than 64 KiB excepted).
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
  };

  struct Tail {
    std::string bytes;
    bool fresh = false;
  };

  void pump();
  bool unread(int local_rank);
  bool move(Stream* stream);  // false at the end of the stream
  void wake();

  std::mutex mutex_;
  std::vector<Stream> streams_;
  std::map<int, Tail> tails_;
  std::map<int, int> open_of_;  // a rank's streams that have not ended, also while one is being moved
  std::atomic<int> open_{0};
  int wake_[2];
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace falcon
