// The writer's side of the ring; core/falcon_core/wire/ring.py is the layout's law.
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
  kGraphLaunch = 5
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

constexpr uint16_t kFailed = 1;  // Record::flags: the call ended by an exception

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
  alignas(64) std::atomic<uint64_t> head;
};
static_assert(offsetof(RingHeader, start_unix_ns) == 48 && offsetof(RingHeader, head) == 64);

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

 private:
  Ring(RingHeader* header, Record* slots) : header_(header), slots_(slots) {}

  RingHeader* header_;
  Record* slots_;
};

uint64_t monotonic_ns();

}  // namespace falcon
