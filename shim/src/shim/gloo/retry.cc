// Gloo's connections at set-up (docs/adr/0061). Gloo connects again up to three times where a peer cannot be reached,
// without any pause, so that its four tries are over within a millisecond. Before each it tells its logger, which
// stands in the program's symbol table: there the thread waits.

#include "common/ring.h"
#include "common/symbols.h"
#include "rank/retries.h"

namespace falcon {
namespace {

// The begin of gloo::transport::tcp::ConnectDebugData, since 2023.
struct FailedConnect {
  int32_t nth;  // retry that comes next, from 1
  int32_t most;
  uint8_t again;
  int32_t own_rank;
  int32_t size;
};

// A release with another layout is left as it is.
bool is_plausible(const FailedConnect& failed) {
  return failed.nth > 0 && failed.nth <= failed.most && failed.most <= 100 && failed.again == 1 &&
         failed.own_rank >= 0 && failed.own_rank < failed.size;
}

}  // namespace
}  // namespace falcon

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): Gloo's names
extern "C" __attribute__((visibility("default"))) void
_ZN4gloo9transport3tcp11DebugLogger3logERKNS1_16ConnectDebugDataE(const falcon::FailedConnect* failed) {
  static std::atomic<void*> cache{nullptr};
  using Log = void (*)(const falcon::FailedConnect*);
  constexpr const char* kName = "_ZN4gloo9transport3tcp11DebugLogger3logERKNS1_16ConnectDebugDataE";
  void* real = cache.load(std::memory_order_acquire);
  if (real == nullptr) {
    real = falcon::resolve_original(kName);
    cache.store(real, std::memory_order_release);
  }
  if (real != nullptr) reinterpret_cast<Log>(real)(failed);
  if (!falcon::is_plausible(*failed)) return;
  const auto nth = static_cast<uint32_t>(failed->nth);
  if (nth > falcon::retries_allowed()) return;
  falcon::wait_for_retry({nth, falcon::retry_pause_ns(nth), 0, failed->own_rank});
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
