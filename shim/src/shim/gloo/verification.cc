#include "gloo/verification.h"

#include <errno.h>

#include <atomic>

#include "common/hash.h"

namespace falcon {
namespace {

constexpr uint64_t kLeastBytes = 1024;        // smaller results are equal by chance: counts, flags, losses
constexpr uint64_t kMostBytes = 64ULL << 20;  // hashed of one result: at 5 GB/s, 13 ms

// One call of every so many, at a place that looks random: a fixed place would be the same gradients in each iteration.
// core/falcon_core/wire/ring.py computes the same.
bool is_chosen(uint32_t number, uint32_t every) {
  const uint32_t turn = number / every;
  const uint64_t mixed = (turn + 1ULL) * 0x9E3779B97F4A7C15ULL;
  return number % every == (mixed >> 32U) % every;
}

// PyTorch's threads run calls of one group at the same time, so that ranks enter them in different orders; the tag that
// the program gives each call is the same on all. A program that gives each call the same tag makes one at a time: then
// `number` stays what it is. False for the first call that is seen, of which that is not known.
bool number_by_tag(Communicator* communicator, uint32_t tag, uint32_t* number) {
  const uint64_t before = communicator->tag.exchange(tag + 1ULL, std::memory_order_relaxed);
  if (before == tag + 1ULL) communicator->untagged.store(1, std::memory_order_relaxed);
  if (communicator->untagged.load(std::memory_order_relaxed) == 0) *number = tag;
  return before != 0;
}

// Whether the process is sure to have had no other communicator of this rank and size. A process's own number for a
// communicator says nothing to other ranks, so that several of a kind could be taken for each other.
bool is_sole(Rank* rank, const Communicator* communicator) {
  const uint64_t shape = communicator->shape.load(std::memory_order_acquire);
  uint32_t alike = 0;
  const Communicator* other = nullptr;
  for (uint32_t index = 0; (other = rank->at(index)) != nullptr; ++index) {
    if (other->shape.load(std::memory_order_acquire) == shape) ++alike;
  }
  return alike == 1 && rank->knows_all();
}

void hash_result(Rank* rank, const Communicator* communicator, const Result& result, uint32_t number) {
  uint64_t offset = 0;
  uint64_t bytes = result.bytes;
  if (bytes > kMostBytes) {  // another part each time, the same on all ranks
    offset = (number + 1ULL) * 0x9E3779B97F4A7C15ULL % (bytes - kMostBytes + 1) / 4096 * 4096;
    bytes = kMostBytes;
  }
  Record record{};
  record.t_start_ns = monotonic_ns();
  const uint64_t hash = hash_bytes(static_cast<const char*>(result.data) + offset, bytes);
  record.duration_ns = monotonic_ns() - record.t_start_ns;
  record.comm = rank->id_of(communicator);
  record.comm_seq = number;
  record.bytes = bytes;
  record.group = static_cast<uint32_t>(hash);
  record.peer_or_root = static_cast<int32_t>(hash >> 32U);
  record.flags = is_sole(rank, communicator) ? kSole : 0;
  record.op = Op::kAllReduce;
  record.kind = Kind::kVerified;
  rank->ring().append(record);
}

}  // namespace

void verify_result(Rank* rank, Communicator* communicator, const GlooCall& about, const void* options,
                   uint32_t number) {
  const uint32_t every = rank->verify_every();
  if (every == 0 || communicator == nullptr || about.size < 2) return;
  const int error = errno;
  uint32_t tag = 0;
  Result result{};
  // Only a chosen call's buffers are looked at.
  if (read_tag(options, &tag) && number_by_tag(communicator, tag, &number) && about.bytes >= kLeastBytes &&
      is_chosen(number, every) && read_result(options, about.bytes, &result)) {
    hash_result(rank, communicator, result, number);
  }
  errno = error;
}

}  // namespace falcon
