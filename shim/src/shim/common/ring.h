// Writes calls into the ring. core/falcon_core/wire/ring.py defines its layout.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace falcon {

constexpr uint64_t kRingMagic = 0x474E4952434C4146;  // "FALCRING", little endian
constexpr uint32_t kRingVersion = 1;
constexpr uint32_t kHeaderBytes = 4096;
constexpr uint32_t kDefaultCapacity = 32768;

enum class Kind : uint8_t {
  kNone = 0,
  kBlocking = 1,
  kEnqueued = 2,
  kCompleted = 3,
  kDescriptor = 4,
  kGraphLaunch = 5,
  kAsyncError = 6,
  kRetry = 7,
  kVerified = 8
};

enum class Op : uint8_t {
  kUnknown = 0,
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kAllToAll = 4,
  kBarrier = 5,
  kBroadcast = 6,
  kReduce = 7,
  kGather = 8,
  kScatter = 9,
  kSend = 10,
  kRecv = 11,
};

// What a counter counts.
enum class Traffic : uint8_t { kCollective = 1, kSend = 2, kRecv = 3, kGraph = 4, kRecvAny = 5 };

// Record::flags
constexpr uint16_t kFailed = 1;    // the call ended by an exception or an error
constexpr uint16_t kEnded = 2;     // kDescriptor: the communicator is gone
constexpr uint16_t kCaptured = 4;  // enqueued on a stream that captures: it runs when its graph is launched
constexpr uint16_t kSole = 8;      // kVerified: the process has surely had no other communicator of this shape

// Point-to-point calls are numbered apart from the collectives of their communicator: under its id with this bit.
constexpr uint64_t kPointToPoint = 1ULL << 31U;
// A graph launch is numbered per graph, under the graph's own number with this bit.
constexpr uint64_t kGraph = 1ULL << 30U;
// A group of sends and receives that all members exchange data by (an all-to-all of unequal parts) is one record,
// numbered apart under its communicator's id with this bit.
constexpr uint64_t kExchange = 1ULL << 29U;

enum class DeviceTimes : uint32_t { kNotAsked = 0, kOn = 1, kOff = 2 };
enum class NoDeviceTimes : uint32_t { kNone = 0, kNoDriver = 1, kOldDriver = 2, kNoThread = 3, kFaults = 4, kExit = 5 };

// RingHeader::full: a table that had no room once. Calls go on uncounted, or in no communicator.
constexpr uint32_t kCommunicatorsFull = 1;
constexpr uint32_t kCountersFull = 2;

struct RingHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint32_t record_bytes;
  uint32_t capacity;
  uint32_t pid;
  uint32_t generation;
  int32_t rank;
  int32_t world_size;
  int32_t local_rank;
  uint32_t flags;
  uint64_t start_unix_ns;
  uint64_t start_ns;
  std::atomic<uint64_t> head;
  uint64_t alone[7];  // the head has a cache line of its own
  uint64_t counters_offset;
  uint32_t counters;
  uint32_t counter_bytes;
  uint64_t unused[6];
  // The gate, for the coordinator: the last pause that made a thread wait, the pause that was given up, and how many
  // threads wait.
  std::atomic<uint64_t> gate_waited;
  std::atomic<uint64_t> gate_opened;
  std::atomic<uint32_t> waiting;
  std::atomic<uint32_t> gate_reason;
  std::atomic<uint64_t> table_seen;
  // The device's times: whether they are taken, or why not.
  std::atomic<DeviceTimes> device_times;
  std::atomic<NoDeviceTimes> device_reason;
  std::atomic<uint32_t> device_code;    // of the driver's last error
  std::atomic<uint32_t> device_faults;  // questions that the driver did not answer
  std::atomic<uint32_t> full;           // bits: kCommunicatorsFull, kCountersFull
};
static_assert(offsetof(RingHeader, start_unix_ns) == 48 && offsetof(RingHeader, head) == 64);
static_assert(offsetof(RingHeader, counters_offset) == 128 && offsetof(RingHeader, gate_waited) == 192);
static_assert(offsetof(RingHeader, device_times) == 224 && offsetof(RingHeader, full) == 240);

// Calls of one kind in one communicator (with one peer, where the kind is point-to-point), readable while they are in
// progress: what the gate's targets compare with.
struct Counter {
  std::atomic<uint64_t> key;  // 0: free
  std::atomic<uint64_t> entered;
  std::atomic<uint64_t> finished;
  uint64_t reserved[5];
};
static_assert(sizeof(Counter) == 64);
constexpr uint32_t kCounters = 16384;  // a send and a receive for each peer, in all communicators that live

struct Record {
  uint64_t seq;
  uint64_t t_start_ns;
  uint64_t duration_ns;
  uint64_t comm;
  uint64_t bytes;
  uint32_t comm_seq;
  uint32_t group;
  int32_t peer_or_root;
  uint16_t stream;
  uint16_t flags;
  Op op;
  uint8_t dtype;
  Kind kind;
  uint8_t pad;
  uint32_t check;
};
static_assert(sizeof(Record) == 64);

// The check word of a record whose seq is already the published one.
uint32_t check_of(const Record& record);

// For what is rare and short: a thread that finds it taken looks again until it is free.
class Lock {
 public:
  void take();
  void release() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

class Locked {
 public:
  explicit Locked(Lock* lock) : lock_(lock) { lock_->take(); }
  ~Locked() { lock_->release(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  Lock* lock_;
};

struct RingIdentity {
  uint32_t pid;
  uint32_t generation;
  int32_t rank;
  int32_t world_size;
  int32_t local_rank;
};

// A mapped ring file. Any thread may append; appending never blocks, allocates or fails.
class Ring {
 public:
  // Makes the file complete under a temporary name and renames it to `path`. Null on any failure: the caller stays
  // inert.
  static Ring* create(const char* folder, const char* path, const RingIdentity& identity, uint32_t capacity,
                      void* storage);

  // Fills in seq and check and publishes.
  void append(Record record);

  // The counter with this key; null once the table is full.
  Counter* counter(uint64_t key);

  // Gives up the counters of a communicator that is gone: their places are used again.
  void free_counters(uint64_t comm);

  RingHeader& header() { return *header_; }

 private:
  Ring(RingHeader* header, Record* slots, Counter* counters) : header_(header), slots_(slots), counters_(counters) {}
  Counter* add_counter(uint64_t key);

  RingHeader* header_;
  Record* slots_;
  Counter* counters_;
  Lock adding_;
};

uint64_t monotonic_ns();

// The key of a counter: communicator id, Traffic, peer.
constexpr uint64_t counter_key(uint64_t comm, Traffic traffic, int32_t peer) {
  return comm << 40U | static_cast<uint64_t>(traffic) << 32U | static_cast<uint32_t>(peer);
}

}  // namespace falcon
