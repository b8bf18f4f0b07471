// Gloo's groups at their end. A group's context lives until its last owner drops it; the next group often gets the same
// address, and would count as the one before on some ranks and as a new one on others. The destructors are symbols of
// the library that has Gloo, called by its vtables and by each other, so that a preloaded definition is called as well.

#include <errno.h>

#include <atomic>

#include "common/symbols.h"
#include "gloo/options.h"
#include "rank/rank.h"

namespace falcon {
namespace {

using Destructor = void (*)(void*);

// A group with point-to-point calls alone goes by its transport's context, which its own context holds.
Communicator* group_of(Rank* rank, const void* context) {
  Communicator* known = rank->find(context);
  for (uint32_t index = 0; known == nullptr && rank->at(index) != nullptr; ++index) {
    Communicator* other = rank->at(index);
    const void* transport = other->transport.load(std::memory_order_acquire);
    if (transport == nullptr || transport != other->handle.load(std::memory_order_acquire)) continue;
    if (holds_transport(context, transport)) known = other;
  }
  return known;
}

void end(std::atomic<Destructor>& cached, const char* symbol, void* context) {
  const int error = errno;
  Rank* rank = Rank::existing();
  if (rank != nullptr) rank->retire(group_of(rank, context));
  Destructor original = cached.load(std::memory_order_acquire);
  if (original == nullptr) {
    original = reinterpret_cast<Destructor>(resolve_original(symbol));
    if (original == nullptr) missing_original();
    cached.store(original, std::memory_order_release);
  }
  errno = error;
  original(context);
}

}  // namespace
}  // namespace falcon

// NOLINTBEGIN(bugprone-*,readability-identifier-naming): these are the mangled names of the functions that we stand in
// for
#define FALCON_ENDS(symbol)                                                      \
  extern "C" __attribute__((visibility("default"))) void symbol(void* context) { \
    static std::atomic<falcon::Destructor> cached{nullptr};                      \
    falcon::end(cached, #symbol, context);                                       \
  }

FALCON_ENDS(_ZN4gloo7ContextD1Ev)
FALCON_ENDS(_ZN4gloo7ContextD2Ev)
FALCON_ENDS(_ZN4gloo10rendezvous7ContextD1Ev)
FALCON_ENDS(_ZN4gloo10rendezvous7ContextD2Ev)
// NOLINTEND(bugprone-*,readability-identifier-naming)
