// The hold of a standby, preloaded around real sockets: where it waits, what it goes on with, and what it never does.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "common/checking.h"

namespace {

// As a standby's interpreter does when it has changed the environment.
void read_variables() { reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "falcon_read_variables"))(); }

sockaddr_in at(const char* host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

int bind_to(int file, const char* host, int port) {
  const int on = 1;
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in address = at(host, port);
  return bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

int connect_to(int file, const char* host, int port) {
  const sockaddr_in address = at(host, port);
  return connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

int tcp(int flags = 0) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
  if (file < 0) std::abort();
  return file;
}

int free_port() {
  const int file = tcp();
  bind_to(file, "127.0.0.1", 0);
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  getsockname(file, reinterpret_cast<sockaddr*>(&address), &length);
  close(file);
  return ntohs(address.sin_port);
}

// A process that stands by; this test is its launcher.
class Held {
 public:
  Held(int port, const std::function<int()>& program) {
    int ends[2];
    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    socket_ = ends[0];
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      struct stat about{};
      fstat(ends[1], &about);
      const std::string hold = std::to_string(getpid()) + " " + std::to_string(ends[1]) + " " + std::to_string(port) +
                               " " + std::to_string(about.st_ino);
      setenv("FALCON_HOLD", hold.c_str(), 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      read_variables();
      _exit(program());
    }
    close(ends[1]);
  }
  ~Held() { close(socket_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // The next that it says; nothing at its end.
  std::string says() const {
    char text[400];
    const ssize_t count = recv(socket_, text, sizeof(text), 0);
    return count > 0 ? std::string(text, static_cast<size_t>(count)) : "";
  }
  bool is_silent(int ms) const {
    pollfd ready{socket_, POLLIN, 0};
    return poll(&ready, 1, ms) == 0;
  }
  void tell(const std::string& words) const { (void)!send(socket_, words.data(), words.size(), MSG_NOSIGNAL); }
  void release(const std::string& order = ".") const {
    tell(order);
    CHECK(says() == "o");
    tell("g");
  }
  int ends() {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void hang_up() {
    close(socket_);
    socket_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

void bind_waits_and_takes_the_very_port() {
  const int port = free_port();
  Held held(port, [port] {
    const int file = tcp();
    if (bind_to(file, "127.0.0.1", port) != 0) return 2;
    sockaddr_in bound{};
    socklen_t length = sizeof(bound);
    getsockname(file, reinterpret_cast<sockaddr*>(&bound), &length);
    const int other = tcp();
    return ntohs(bound.sin_port) == port && bind_to(other, "127.0.0.1", free_port()) == 0 ? 0 : 3;
  });
  CHECK(held.says() == "ready \n");
  CHECK(held.is_silent(50));
  held.release();
  CHECK(held.ends() == 0);
}

// The listener comes after the release, at another address, and the socket does not block.
void connect_waits_for_who_listens_later() {
  for (const int flags : {0, static_cast<int>(SOCK_NONBLOCK)}) {
    const int port = free_port();
    Held held(port, [port, flags] {
      const int file = tcp(flags);
      if (connect_to(file, "127.0.0.1", port) != 0) return 2;
      char byte = 'x';
      if (send(file, &byte, 1, 0) != 1) return 3;
      const int second = tcp();  // another store of the same program
      return connect_to(second, "127.0.0.1", port) == 0 ? 0 : 4;
    });
    CHECK(held.says() == "ready \n");
    held.release(std::string("MASTER_ADDR=127.0.0.2\0.", 23));
    usleep(50000);
    const int listener = tcp();
    CHECK(bind_to(listener, "127.0.0.2", port) == 0);
    CHECK(listen(listener, 4) == 0);
    const int accepted = accept(listener, nullptr, nullptr);
    char byte = 0;
    CHECK(accepted >= 0 && recv(accepted, &byte, 1, 0) == 1 && byte == 'x');
    CHECK(held.ends() == 0);
    close(accepted);
    close(listener);
  }
}

void without_the_last_word_it_ends() {
  const int port = free_port();
  for (const bool ordered : {false, true}) {
    Held held(port, [port] { return bind_to(tcp(), "127.0.0.1", port) == 0 ? 2 : 3; });
    CHECK(held.says() == "ready \n");
    if (ordered) held.tell(".");
    if (ordered) CHECK(held.says() == "o");
    held.hang_up();
    CHECK(held.ends() == 0);
  }
  Held unknown(port, [port] { return bind_to(tcp(), "127.0.0.1", port) == 0 ? 2 : 3; });
  CHECK(unknown.says() == "ready \n");
  unknown.tell("MASTER_ADDR=no such host");
  unknown.hang_up();
  CHECK(unknown.ends() == 0);
}

void it_touches_nothing_of_the_running_ranks() {
  const int port = free_port();
  const int other = free_port();
  Held binds(port, [other] { return bind_to(tcp(), "0.0.0.0", other); });
  CHECK(binds.says() ==
        "failed the program binds port " + std::to_string(other) + " before it meets the other ranks\n");
  CHECK(binds.ends() == 1);
  Held connects(port, [other] { return connect_to(tcp(), "127.0.0.1", other); });
  CHECK(connects.says().find("connects to port " + std::to_string(other)) != std::string::npos);
  CHECK(connects.ends() == 1);
  // Elsewhere it may read what it needs.
  const int listener = tcp();
  CHECK(bind_to(listener, "127.0.0.3", other) == 0 && listen(listener, 4) == 0);
  Held reads(port, [other] { return connect_to(tcp(), "127.0.0.3", other); });
  CHECK(reads.ends() == 0);
  close(listener);
}

// Which no hold of its own would keep from meeting the others.
void its_children_are_no_ranks_until_it_is_one() {
  const int port = free_port();
  const auto in_child = [port] {
    const pid_t child = fork();
    if (child == 0) _exit(bind_to(tcp(), "127.0.0.1", port) == 0 ? 0 : 2);
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  Held held(port, [port, in_child] {
    if (in_child() != 1) return 2;
    const int file = tcp();
    if (bind_to(file, "127.0.0.1", port) != 0) return 3;
    close(file);
    return in_child() == 0 ? 0 : 4;
  });
  CHECK(held.says() == "ready \n");
  held.release();
  CHECK(held.ends() == 0);
}

void others_are_not_held() {
  const int port = free_port();
  for (const char* hold : {"", "1", "nonsense", "1 2 3", "99999999 1 1 1"}) {
    setenv("FALCON_HOLD", hold, 1);
    read_variables();
    const int file = tcp();
    CHECK(bind_to(file, "127.0.0.1", port) == 0);
    close(file);
  }
  // A socket that is another by now: the process has been released, and replaced by another program.
  setenv("FALCON_HOLD", (std::to_string(getpid()) + " 0 " + std::to_string(port) + " 1").c_str(), 1);
  read_variables();
  const int file = tcp();
  CHECK(bind_to(file, "127.0.0.1", port) == 0);
  close(file);
  unsetenv("FALCON_HOLD");
  read_variables();
  const int refused = tcp();
  CHECK(connect_to(refused, "127.0.0.1", port) != 0 && errno == ECONNREFUSED);
  close(refused);
}

// A rank that is refused is connected as soon as somebody listens, and another port's caller is refused at once.
void a_rank_meets_who_listens_a_moment_later() {
  for (const int flags : {0, static_cast<int>(SOCK_NONBLOCK)}) {
    const int port = free_port();
    setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    read_variables();
    const pid_t pid = fork();
    if (pid == 0) {
      const int elsewhere = tcp();
      if (connect_to(elsewhere, "127.0.0.1", free_port()) == 0 || errno != ECONNREFUSED) _exit(2);
      const int file = tcp(flags);
      if (connect_to(file, "127.0.0.1", port) != 0) _exit(3);  // a single call
      char byte = 'x';
      _exit(send(file, &byte, 1, 0) == 1 ? 0 : 4);
    }
    usleep(200000);
    const int listener = tcp();
    CHECK(bind_to(listener, "127.0.0.1", port) == 0 && listen(listener, 4) == 0);
    const int accepted = accept(listener, nullptr, nullptr);
    char byte = 0;
    CHECK(accepted >= 0 && recv(accepted, &byte, 1, 0) == 1 && byte == 'x');
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(accepted);
    close(listener);
  }
}

// Where nobody comes, the caller has its own error after a moment, and its own way to go on.
void a_rank_that_nobody_meets_is_refused() {
  const int port = free_port();
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  read_variables();
  const int file = tcp();
  CHECK(connect_to(file, "127.0.0.1", port) != 0 && errno == ECONNREFUSED);
  close(file);
  const int datagrams = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  CHECK(connect_to(datagrams, "127.0.0.1", port) == 0);
  close(datagrams);
  unsetenv("MASTER_PORT");
  read_variables();
}

// Each as without the shim: the kernel says what is wrong with a pointer or a length.
void a_bad_pointer_is_an_error_and_no_crash() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* pages = static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  munmap(pages + page, page);
  const sockaddr_in whole = at("127.0.0.1", 0);
  memcpy(pages + page - sizeof(whole), &whole, sizeof(whole));
  const auto length = static_cast<socklen_t>(sizeof(sockaddr_in));
  const struct {
    const void* address;
    socklen_t length;
    int error;  // of bind; 0: it succeeds
  } cases[] = {
      {nullptr, length, EFAULT},
      {reinterpret_cast<const void*>(8), length, EFAULT},
      {reinterpret_cast<const void*>(~uintptr_t{0} - 4), length, EFAULT},  // NOLINT(performance-no-int-to-ptr)
      {pages + page - 4, length, EFAULT},                                  // only its beginning is there
      {pages + page, length, EFAULT},
      {&whole, 2, EINVAL},
      {&whole, 0, EINVAL},
      {&whole, static_cast<socklen_t>(-1), EINVAL},
      {pages + page - sizeof(whole), length, 0},  // up to the last byte
  };
  for (const auto& each : cases) {
    const auto* address = static_cast<const sockaddr*>(each.address);
    const int binding = tcp();
    errno = 0;
    CHECK(bind(binding, address, each.length) == (each.error == 0 ? 0 : -1) && errno == each.error);
    const int connecting = tcp();
    errno = 0;
    CHECK(connect(connecting, address, each.length) == -1);
    CHECK(errno == (each.error == 0 ? ECONNREFUSED : each.error));
    close(binding);
    close(connecting);
  }
  munmap(pages, page);
}

// getenv there would read what setenv has freed: it crashed within a second.
void a_connection_beside_a_changing_environment() {
  std::atomic<bool> done{false};
  std::thread connecting([&done] {
    const int file = tcp();
    for (int count = 0; count < 20000; ++count) connect_to(file, "127.0.0.1", 1);
    close(file);
    done = true;
  });
  for (int round = 0; !done; ++round) {
    for (int number = 0; number < 2000; ++number) {
      const std::string name = "V" + std::to_string(2000 * (round % 2) + number);
      setenv(name.c_str(), "x", 1);
      if (done) break;
    }
    for (int number = 0; number < 2000; ++number) {
      unsetenv(("V" + std::to_string(2000 * (round % 2) + number)).c_str());
    }
  }
  connecting.join();
}

}  // namespace

int main() {
  bind_waits_and_takes_the_very_port();
  connect_waits_for_who_listens_later();
  without_the_last_word_it_ends();
  it_touches_nothing_of_the_running_ranks();
  its_children_are_no_ranks_until_it_is_one();
  others_are_not_held();
  a_rank_meets_who_listens_a_moment_later();
  a_rank_that_nobody_meets_is_refused();
  a_bad_pointer_is_an_error_and_no_crash();
  a_connection_beside_a_changing_environment();
  return failures == 0 ? 0 : 1;
}
