// Maps the control file read-only. core/falcon_core/wire/launcher/control.py defines its layout.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace falcon {

// kOff: calls are counted, as the gate needs it, and not recorded.
enum class Mode : uint8_t { kOff = 0, kTrack = 1, kProfile = 2 };

struct ControlHeader {
  uint64_t magic;
  uint32_t version;
  std::atomic<uint32_t> mode;  // low byte Mode, kArmed
  std::atomic<uint64_t> epoch;
  std::atomic<uint64_t> heartbeat_ns;
  std::atomic<uint64_t> deadline_ns;
  std::atomic<uint64_t> gate;         // number of the pause
  std::atomic<uint64_t> table_epoch;  // odd while the table is being written
  std::atomic<uint32_t> entries;
  std::atomic<uint32_t> sample_every;  // cycles
  std::atomic<uint32_t> cycle_calls;
  std::atomic<uint32_t> verify_every;  // all-reduces; 0: no result is hashed
  uint32_t reserved[14];
};
static_assert(offsetof(ControlHeader, mode) == 12 && offsetof(ControlHeader, cycle_calls) == 64 &&
              sizeof(ControlHeader) == 128);

struct GateEntry {
  std::atomic<uint64_t> key;  // Counter::key
  std::atomic<uint64_t> target;
  std::atomic<uint32_t> pid;
  uint32_t pad;
  uint64_t reserved;
};
static_assert(sizeof(GateEntry) == 32);

class Control {
 public:
  static constexpr uint64_t kMagic = 0x4C525443434C4146;  // "FALCCTRL", little endian
  static constexpr uint32_t kVersion = 1;
  static constexpr size_t kSmallest = 4096;
  static constexpr uint32_t kArmed = 0x100;

  // Maps the file; without one, or with one of another version, the mode is kTrack and there is no gate.
  void map(const char* path);

  Mode mode() const {
    return header_ == nullptr ? Mode::kTrack : static_cast<Mode>(header_->mode.load(std::memory_order_relaxed) & 0xFFU);
  }
  bool armed() const { return header_ != nullptr && (header_->mode.load(std::memory_order_acquire) & kArmed) != 0; }
  // Whether this call of the rank, counted from 0, gets device events: each in profile mode, else one cycle in N. The
  // shim knows no cycles: any window of as many calls as a cycle has holds each of its calls once.
  bool sampled(uint32_t call) const {
    if (header_ == nullptr || mode() == Mode::kOff) return false;
    if (mode() == Mode::kProfile) return true;
    const uint32_t every = header_->sample_every.load(std::memory_order_relaxed);
    const uint32_t calls = header_->cycle_calls.load(std::memory_order_relaxed);
    return every != 0 && calls != 0 && call / calls % every == 0;
  }

  // Of how many all-reduces one has its result hashed; 0: none.
  uint32_t verify_every() const {
    return header_ == nullptr || mode() == Mode::kOff ? 0 : header_->verify_every.load(std::memory_order_relaxed);
  }

  const ControlHeader* header() const { return header_; }
  // Entries that fit into the file as it was mapped.
  uint32_t capacity() const { return capacity_; }
  const GateEntry* entries() const { return reinterpret_cast<const GateEntry*>(header_ + 1); }

 private:
  const ControlHeader* header_;
  uint32_t capacity_;
};

}  // namespace falcon
