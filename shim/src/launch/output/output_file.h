// Keeps a rank's newest output in a file, for the agent. core/falcon_core/wire/launcher/output.py defines the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace falcon {

constexpr uint64_t kOutputMagic = 0x5455504F434C4146;  // "FALCOPUT", little endian
constexpr uint32_t kOutputVersion = 1;
constexpr uint32_t kOutputHeaderBytes = 4096;
constexpr size_t kOutputBytes = 1024 * 1024;
constexpr size_t kMostAhead = 64 * 1024;  // written at a time, before the total says so

struct OutputHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t capacity;
  uint32_t generation;
  int32_t local_rank;
  uint64_t made_unix_ns;
  uint64_t unused[3];
  uint64_t total;  // bytes ever written; with the time after it alone in a cache line
  uint64_t written_unix_ns;
};
static_assert(offsetof(OutputHeader, made_unix_ns) == 32 && offsetof(OutputHeader, total) == 64);

// It is never mapped: the ranks may write in its folder, and a file that somebody cuts short would end whoever has it
// mapped. A write that fails is forgotten.
class OutputFile {
 public:
  OutputFile() = default;
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Makes the file with all its space, in place of whatever has its name. False with errno set.
  bool make(const std::string& path, int generation, int local_rank);

  // `stream`: the descriptor that the process wrote to. Where another stream has not ended its line, one newline stands
  // between them: their words are no line.
  void append(int stream, const char* bytes, size_t size);

  // Whether the newest bytes are of a line that has not ended.
  [[nodiscard]] bool within_line() const { return within_line_; }

 private:
  void write(const char* bytes, size_t size);

  int file_ = -1;
  uint64_t total_ = 0;
  int stream_ = -1;  // of the newest bytes
  bool within_line_ = false;
};

}  // namespace falcon
