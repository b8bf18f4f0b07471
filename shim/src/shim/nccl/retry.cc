#include "nccl/retry.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <initializer_list>

#include "common/ring.h"
#include "common/variables.h"
#include "nccl/forwarding.h"
#include "rank/retries.h"

namespace falcon::nccl {
namespace {

constexpr uint64_t kMost = 30000000000;  // ns from the first try's begin; programs wait for a minute and more

// NCCL's words on its last error; empty in a release that has none.
const char* last_words() {
  using Ask = const char* (*)(Comm);
  static std::atomic<void*> cache{nullptr};
  const auto ask = real<Ask>(cache, "ncclGetLastError");
  const char* text = ask == nullptr ? nullptr : ask(nullptr);
  return text == nullptr ? "" : text;
}

// The next failure may leave no words of its own: a question without a communicator leaves these instead.
void replace_last_words() {
  using Ask = Result (*)(Comm, int*);
  static std::atomic<void*> cache{nullptr};
  const auto ask = real<Ask>(cache, "ncclCommCount");
  int count = 0;
  if (ask != nullptr) ask(nullptr, &count);
}

// The root's address lies in the unique id: since release 2.14 after a number of 8 bytes, before at its begin.
bool address_of(const UniqueId& id, sockaddr_in6* address) {
  for (const size_t offset : {size_t{8}, size_t{0}}) {
    memcpy(address, id.internal + offset, sizeof(*address));
    const bool known = address->sin6_family == AF_INET || address->sin6_family == AF_INET6;
    if (known && address->sin6_port != 0) return true;  // at the same place for both
  }
  return false;
}

// Whether the words say that a connection to this address failed. Releases write it as a number or as the host's name.
bool tell_of(const char* words, const sockaddr_in6& address) {
  const socklen_t size = address.sin6_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  for (const int form : {NI_NUMERICHOST, 0}) {
    char host[NI_MAXHOST];
    char port[NI_MAXSERV];
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    if (getnameinfo(generic, size, host, sizeof(host), port, sizeof(port), form | NI_NUMERICSERV) != 0) continue;
    char wanted[NI_MAXHOST + NI_MAXSERV + 16];
    snprintf(wanted, sizeof(wanted), "onnect to %s<%s>", host, port);
    if (strstr(words, wanted) != nullptr) return true;
  }
  return false;
}

}  // namespace

Tries::Tries(const UniqueId* root) : root_(root), began_ns_(root == nullptr ? 0 : monotonic_ns()) {}

bool Tries::again(Result error, int32_t rank) {
  if (root_ == nullptr || (error != kSystemError && error != kRemoteError) || retries_ >= retries_allowed())
    return false;
  // Here each call of the first rank begins to listen anew, at the same port.
  char id[8];
  if (read_variable("NCCL_COMM_ID", id, sizeof(id))) return false;
  sockaddr_in6 root{};
  if (!address_of(*root_, &root) || !tell_of(last_words(), root)) return false;
  const uint64_t pause = retry_pause_ns(retries_ + 1);
  if (monotonic_ns() + pause - began_ns_ > kMost) return false;
  replace_last_words();
  if (tell_of(last_words(), root)) return false;
  wait_for_retry({++retries_, pause, static_cast<uint64_t>(error), rank});
  return true;
}

}  // namespace falcon::nccl
