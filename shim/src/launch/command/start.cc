#include "command/start.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "command/program.h"

namespace falcon {
namespace {

// What a process image must not inherit from us: our own blocked and ignored signals.
void restore_signals() {
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

std::vector<char*> pointers(std::vector<std::string>* words) {
  std::vector<char*> out;
  out.reserve(words->size() + 1);
  for (std::string& word : *words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

Started start_command(const std::vector<std::string>& command, const Variables& environment, const Output::Ends& ends,
                      const std::function<void()>& prepare) {
  const std::string program = find_program(command[0]);
  if (program.empty()) return {-1, command[0] + ": not found in PATH: is it in the container's image?"};
  std::vector<std::string> variables = joined(environment);
  std::vector<std::string> words = command;
  std::vector<std::string> shell_words{"/bin/sh", program};
  shell_words.insert(shell_words.end(), words.begin() + 1, words.end());
  const std::vector<char*> envp = pointers(&variables);
  const std::vector<char*> argv = pointers(&words);
  const std::vector<char*> shell_argv = pointers(&shell_words);
  int failure[2];
  if (pipe2(failure, O_CLOEXEC) != 0) return {-1, std::string("pipe: ") + strerror(errno)};
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127);
    prepare();
    restore_signals();
    if (ends.out >= 0) {
      dup2(ends.out, STDOUT_FILENO);
      dup2(ends.err, STDERR_FILENO);
    }
    execve(program.c_str(), argv.data(), envp.data());
    if (errno == ENOEXEC) execve("/bin/sh", shell_argv.data(), envp.data());  // a script without #!, as execvp does
    const int error = errno;
    (void)!write(failure[1], &error, sizeof(error));
    _exit(127);
  }
  const int fork_error = errno;
  close(failure[1]);
  int error = 0;
  const bool failed = pid > 0 && read(failure[0], &error, sizeof(error)) == static_cast<ssize_t>(sizeof(error));
  close(failure[0]);
  if (pid < 0) return {-1, std::string("fork: ") + strerror(fork_error)};
  if (failed) {
    waitpid(pid, nullptr, 0);
    return {-1, program + ": " + strerror(error)};
  }
  setpgid(pid, pid);
  return {pid, ""};
}

std::string failure_of(int status) {
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "exited with code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace falcon
