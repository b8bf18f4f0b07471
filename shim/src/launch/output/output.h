// Passes the ranks' output through as it comes, and keeps its newest bytes in a file for the agent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "output/announcement.h"
#include "output/output_file.h"

namespace falcon {

// One thread moves bytes from the ranks' pipes to our own stdout and stderr, every byte as it is. With one rank they
// pass at once; with several, a line (to a newline or carriage return) is never cut by another rank's, except where it
// is longer than 1 MiB or has not ended after five seconds.
class Output {
 public:
  // `folder`: of the files for the agent.
  explicit Output(const std::string& folder);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  struct Ends {
    int out = -1;
    int err = -1;
  };

  // Two pipes for a process; -1 where there are none.
  struct Pipes {
    Ends read;
    Ends write;
  };
  static Pipes make_pipes();

  // Write ends for a new process, whose output goes to a file of its own as well; the caller closes them after the
  // fork.
  Ends add(int generation, int local_rank, bool whole_lines);

  // The same for a process that has the write ends already. Takes the read ends over.
  void add(const Ends& read, int generation, int local_rank, bool whole_lines);

  // Waits until what a rank has written by now has been read, at most `milliseconds`: its last words precede the news
  // of its end. A grandchild may hold the pipe open, so the end of the stream is not waited for.
  void settle(int local_rank, int milliseconds);

  // Waits, at most `milliseconds`, until the pipes that are closed on the far side have been read to the end.
  void drain(int milliseconds);

 private:
  struct Stream {
    int from;
    int to;
    int local_rank;
    bool whole_lines;
    std::shared_ptr<OutputFile> file;
    std::string pending;
    int64_t pending_since_ns = 0;
    std::atomic<bool> moving{false};  // bytes are out of the pipe and not yet in the file
  };

  using Streams = std::vector<std::shared_ptr<Stream>>;

  std::shared_ptr<OutputFile> make_file(int generation, int local_rank);
  void pump();
  bool unread(int local_rank);
  int wait_ms(const Streams& streams) const;
  int partial_ms(const Streams& streams) const;
  void serve(const std::shared_ptr<Stream>& stream, bool readable);
  bool move_lines(Stream* stream);  // false at the end of the stream
  bool move(Stream* stream);        // one chunk
  void wake();

  std::string folder_;
  Announcement printed_;  // of the thread alone
  bool refusal_told_ = false;
  std::mutex mutex_;
  Streams streams_;
  std::atomic<int> open_{0};
  int wake_[2];
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace falcon
