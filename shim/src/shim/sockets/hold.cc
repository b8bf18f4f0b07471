#include "sockets/hold.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/memory.h"
#include "common/ring.h"
#include "common/symbols.h"
#include "common/variables.h"

namespace falcon {
namespace {

constexpr uint64_t kPatienceNs = 300000000000;  // for rank 0 to listen: another start may be cold
constexpr timespec kPause{0, 5000000};
// In one call, for a rank 0 that starts beside us: PyTorch's store asks again after up to half a second by itself.
constexpr uint64_t kMeetingNs = 1000000000;
constexpr size_t kMostOrder = 1024;
constexpr char kAddress[] = "MASTER_ADDR=";

struct Standby {
  pid_t process = 0;
  int socket = -1;
  int port = 0;
  uint64_t inode = 0;
};

enum State : uint32_t { kNotHeld = 0, kHeld = 1, kReleased = 2 };

std::atomic<uint32_t> g_state{kNotHeld};
// Written before kReleased, and never again.
int g_port;
char g_address[kMostOrder];  // where rank 0 is now; empty: where it was

bool is_open(const Standby& standby) {
  char path[64];
  char wanted[64];
  char target[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", standby.process, standby.socket);
  snprintf(wanted, sizeof(wanted), "socket:[%llu]", static_cast<unsigned long long>(standby.inode));
  const ssize_t length = readlink(path, target, sizeof(target));
  return length == static_cast<ssize_t>(strlen(wanted)) && strncmp(target, wanted, strlen(wanted)) == 0;
}

// Whether this process belongs to a standby that is no rank yet.
bool stands_by(Standby* standby) {
  if (g_state.load(std::memory_order_acquire) == kReleased) return false;
  const char* text = variables().hold;
  if (*text == '\0') return false;
  char* at = nullptr;
  standby->process = static_cast<pid_t>(strtol(text, &at, 10));
  standby->socket = static_cast<int>(strtol(at, &at, 10));
  standby->port = static_cast<int>(strtol(at, &at, 10));
  standby->inode = strtoull(at, &at, 10);
  return *at == '\0' && standby->port > 0 && is_open(*standby);
}

[[noreturn]] void refuse(const Standby& standby, const char* what) {
  char line[200];
  const int length = snprintf(line, sizeof(line), "failed the program %s before it meets the other ranks\n", what);
  if (standby.process == getpid()) (void)!send(standby.socket, line, static_cast<size_t>(length), MSG_NOSIGNAL);
  _exit(1);
}

// Up to the dot that ends it; the order is short.
bool read_all(int socket, char* bytes, size_t most) {
  for (size_t held = 0; held < most; ++held) {
    ssize_t count = 0;
    do {
      count = recv(socket, bytes + held, 1, 0);
    } while (count < 0 && errno == EINTR);
    if (count != 1) return false;
    if (bytes[held] == '.' && (held == 0 || bytes[held - 1] == '\0')) {
      bytes[held] = '\0';
      return true;
    }
  }
  return false;
}

// The socket's own address of a host, with that port.
bool resolve(const char* host, int family, int port, sockaddr_storage* found, socklen_t* length) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_V4MAPPED;
  addrinfo* all = nullptr;
  if (getaddrinfo(host, nullptr, &hints, &all) != 0 || all == nullptr) return false;
  const bool fits = all->ai_addrlen <= sizeof(*found);
  if (fits) {
    memcpy(found, all->ai_addr, all->ai_addrlen);
    *length = all->ai_addrlen;
    if (family == AF_INET) reinterpret_cast<sockaddr_in*>(found)->sin_port = htons(static_cast<uint16_t>(port));
    if (family == AF_INET6) reinterpret_cast<sockaddr_in6*>(found)->sin6_port = htons(static_cast<uint16_t>(port));
  }
  freeaddrinfo(all);
  return fits;
}

// Blocks until falcon-launch makes this process a rank. No return where it does not.
void wait_for_release(const Standby& standby, int family) {
  uint32_t state = kNotHeld;
  if (!g_state.compare_exchange_strong(state, kHeld, std::memory_order_acq_rel)) {
    while (g_state.load(std::memory_order_acquire) != kReleased) nanosleep(&kPause, nullptr);
    return;
  }
  constexpr char kReady[] = "ready \n";
  (void)!send(standby.socket, kReady, sizeof(kReady) - 1, MSG_NOSIGNAL);
  char order[kMostOrder];
  if (!read_all(standby.socket, order, sizeof(order))) _exit(0);
  if (strncmp(order, kAddress, sizeof(kAddress) - 1) == 0) {
    snprintf(g_address, sizeof(g_address), "%s", order + sizeof(kAddress) - 1);
    sockaddr_storage there{};
    socklen_t length = 0;
    if (!resolve(g_address, family, standby.port, &there, &length)) _exit(0);
  }
  char word = 0;
  if (send(standby.socket, "o", 1, MSG_NOSIGNAL) != 1) _exit(0);
  while (recv(standby.socket, &word, 1, 0) < 0 && errno == EINTR) {
  }
  if (word != 'g') _exit(0);
  g_port = standby.port;
  close(standby.socket);
  g_state.store(kReleased, std::memory_order_release);
}

// The caller's address, read by the kernel: of a pointer that leads nowhere the real call says EFAULT.
struct Address {
  sockaddr_storage bytes{};
  int port = 0;  // 0: none of the Internet families

  Address(const sockaddr* given, socklen_t length) {
    const size_t size = std::min<size_t>(length, sizeof(sockaddr_in6));
    if (given == nullptr || size < sizeof(sockaddr_in) || read_memory(given, &bytes, size) != size) return;
    if (bytes.ss_family == AF_INET) port = ntohs(reinterpret_cast<const sockaddr_in*>(&bytes)->sin_port);
    if (bytes.ss_family == AF_INET6 && size == sizeof(sockaddr_in6)) {
      port = ntohs(reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_port);
    }
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

bool is_stream(int file) {
  int type = 0;
  socklen_t length = sizeof(type);
  return getsockopt(file, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

// Whether the running ranks meet at that host.
bool is_master(const sockaddr* address) {
  const char* master = variables().master_address;
  char text[INET6_ADDRSTRLEN] = "";
  const void* bytes = address->sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  if (*master == '\0' || inet_ntop(address->sa_family, bytes, text, sizeof(text)) == nullptr) return false;
  constexpr char kMapped[] = "::ffff:";
  const char* bare = strncmp(text, kMapped, sizeof(kMapped) - 1) == 0 ? text + sizeof(kMapped) - 1 : text;
  return strcmp(bare, master) == 0;
}

using Call = int (*)(int, const sockaddr*, socklen_t);

std::atomic<void*> g_bind{nullptr};
std::atomic<void*> g_connect{nullptr};

Call original(std::atomic<void*>* cache, const char* name) {
  void* found = cache->load(std::memory_order_acquire);
  if (found == nullptr) {
    found = resolve_original(name);
    cache->store(found, std::memory_order_release);
  }
  return reinterpret_cast<Call>(found);
}

// At load: a program may call both in a signal handler, where the loader's lock may be held.
__attribute__((constructor)) void find_originals() {
  original(&g_bind, "bind");
  original(&g_connect, "connect");
}

int real_bind(int file, const sockaddr* address, socklen_t length) {
  const Call found = original(&g_bind, "bind");
  return found != nullptr ? found(file, address, length) : static_cast<int>(syscall(SYS_bind, file, address, length));
}

int real_connect(int file, const sockaddr* address, socklen_t length) {
  const Call found = original(&g_connect, "connect");
  return found != nullptr ? found(file, address, length)
                          : static_cast<int>(syscall(SYS_connect, file, address, length));
}

// How a connection attempt of a socket that does not block has ended; 0: it is there.
int outcome(int file, uint64_t until_ns) {
  pollfd ready{file, POLLOUT, 0};
  int count = 0;
  do {
    const uint64_t now = monotonic_ns();
    const uint64_t left_ms = now < until_ns ? (until_ns - now) / 1000000 + 1 : 0;
    count = poll(&ready, 1, static_cast<int>(left_ms));
  } while (count < 0 && errno == EINTR);
  int error = 0;
  socklen_t length = sizeof(error);
  if (count <= 0 || getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return ETIMEDOUT;
  return error;
}

bool may_come(int error) {
  return error == ECONNREFUSED || error == ECONNABORTED || error == ECONNRESET || error == EHOSTUNREACH ||
         error == ENETUNREACH || error == ETIMEDOUT;
}

// Connects to who may not listen yet. The caller's own time was over during the hold: it gets a connection that is
// there, also where its socket does not block.
int connect_patiently(int file, const sockaddr* address, socklen_t length) {
  const uint64_t until_ns = monotonic_ns() + kPatienceNs;
  for (;;) {
    int error = real_connect(file, address, length) == 0 ? 0 : errno;
    if (error == EINPROGRESS || error == EALREADY || error == EINTR) error = outcome(file, until_ns);
    if (error == 0 || error == EISCONN) return 0;
    if (!may_come(error) || monotonic_ns() >= until_ns) {
      errno = error;
      return -1;
    }
    nanosleep(&kPause, nullptr);
  }
}

// Whether that is where the ranks of this process's generation meet.
bool is_meeting(int port) { return variables().master_port == port; }

// Connects to rank 0, which may not listen yet: who is refused is tried again at once, for a moment. What is under way
// then is the caller's own, as without us.
int connect_promptly(int file, const sockaddr* address, socklen_t length) {
  const uint64_t until_ns = monotonic_ns() + kMeetingNs;
  for (bool refused = false;; refused = true) {
    if (real_connect(file, address, length) == 0) return 0;
    int error = errno;
    if (error == ECONNABORTED && refused) error = ECONNREFUSED;  // what the kernel still has to say of the try before
    if (error == EINPROGRESS) {
      error = outcome(file, until_ns);
      if (error == ETIMEDOUT) error = EINPROGRESS;
    }
    if (error == 0) return 0;
    if (error != ECONNREFUSED || monotonic_ns() >= until_ns) {
      errno = error;
      return -1;
    }
    nanosleep(&kPause, nullptr);
  }
}

// What a standby does at a port: it waits where its ranks meet, and touches no port of the running ranks.
bool hold_at(int port, const sockaddr* address, int family, bool binds) {
  Standby standby;
  if (!stands_by(&standby)) return false;
  char what[64];
  if (port == standby.port && standby.process == getpid()) {
    wait_for_release(standby, family);
    return true;
  }
  snprintf(what, sizeof(what), "%s port %d", binds ? "binds" : "connects to", port);
  if (port == standby.port || binds || is_master(address)) refuse(standby, what);
  return false;
}

}  // namespace

void refuse_in_standby(const char* what) {
  Standby standby;
  if (stands_by(&standby)) refuse(standby, what);
}

}  // namespace falcon

extern "C" __attribute__((visibility("default"))) int bind(int file, const sockaddr* address, socklen_t length) {
  using namespace falcon;
  const Address given(address, length);
  if (given.port != 0 && is_stream(file)) hold_at(given.port, given.get(), AF_UNSPEC, true);
  return real_bind(file, address, length);
}

extern "C" __attribute__((visibility("default"))) int connect(int file, const sockaddr* address, socklen_t length) {
  using namespace falcon;
  const Address given(address, length);
  if (given.port == 0) return real_connect(file, address, length);
  const int family = given.get()->sa_family;
  const bool held = is_stream(file) && hold_at(given.port, given.get(), family, false);
  sockaddr_storage there{};
  if (g_state.load(std::memory_order_acquire) == kReleased && given.port == g_port && g_address[0] != '\0' &&
      resolve(g_address, family, given.port, &there, &length)) {
    address = reinterpret_cast<const sockaddr*>(&there);
  }
  if (held) return connect_patiently(file, address, length);
  if (is_meeting(given.port) && is_stream(file)) return connect_promptly(file, address, length);
  return real_connect(file, address, length);
}
