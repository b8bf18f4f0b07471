// Reads the records of a checkpoint in the pod's memory, as the ranks' client writes them
// (falcon_torch/store/format.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace falcon {

constexpr size_t kCheckpointPage = 4096;  // the records lie in it
constexpr size_t kVerifiedOffset = 2048;
constexpr size_t kChecksOffset = 4096;

// What the first page of a buffer says of a whole checkpoint.
struct CheckpointPage {
  uint64_t generation = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t step = 0;
  uint64_t sequence = 0;  // grows by one with each save of the rank
  uint64_t begin = 0;     // of the chunks
  uint64_t end = 0;
  uint32_t chunk_bytes = 0;
  bool verified = false;   // its chunks have checksums
  bool in_folder = false;  // the folder has it
  std::string folder;      // where the script keeps its files; empty: in memory alone
  uint32_t part = 0;       // and as what it is named there
  uint32_t parts = 0;

  // The name of its file in that folder.
  std::string file_name() const;
};

// Nothing where a buffer of so many bytes holds no whole checkpoint. `page`: its first `kCheckpointPage` bytes, which
// the training processes have written: all parts lie within the buffer, whatever they say.
std::optional<CheckpointPage> read_checkpoint(const char* page, uint64_t size);

// CRC-32 as zlib computes it; `crc`: of what came before.
uint32_t crc32(const char* bytes, size_t count, uint32_t crc = 0);

// The table of the chunks' checksums, which belongs to `kChecksOffset`; and the record for `kVerifiedOffset`.
std::string checksums(const char* buffer, const CheckpointPage& page);
std::string verified_record(const CheckpointPage& page, const std::string& table);

}  // namespace falcon
