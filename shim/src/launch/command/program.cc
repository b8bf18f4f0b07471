#include "command/program.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace falcon {
namespace {

constexpr int kScriptDepth = 4;

// "#!/usr/bin/env python3" names python3, not env.
std::string script_interpreter(const std::string& line) {
  std::istringstream words(line);
  std::string program;
  words >> program;
  const size_t slash = program.rfind('/');
  if (program.substr(slash == std::string::npos ? 0 : slash + 1) != "env") return program;
  for (std::string word; words >> word;) {
    if (word[0] != '-' && word.find('=') == std::string::npos) return find_program(word);
  }
  return program;
}

std::string judge_elf(int file, const Elf64_Ehdr& header) {
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    const off_t at = static_cast<off_t>(header.e_phoff + static_cast<Elf64_Off>(i) * header.e_phentsize);
    if (pread(file, &segment, sizeof(segment), at) != static_cast<ssize_t>(sizeof(segment))) return "";
    if (segment.p_type != PT_INTERP) continue;
    char name[256] = {};
    const size_t length = segment.p_filesz < sizeof(name) - 1 ? segment.p_filesz : sizeof(name) - 1;
    if (pread(file, name, length, static_cast<off_t>(segment.p_offset)) <= 0) return "";
    return strstr(name, "ld-musl") != nullptr ? "musl" : "";
  }
  return kStatic;
}

// A library of another machine or word size cannot be preloaded; the launcher is of the shim's.
std::string judge_machine(const Elf64_Ehdr& header) {
#if defined(__x86_64__)
  constexpr Elf64_Half kMachine = EM_X86_64;
#else
  constexpr Elf64_Half kMachine = EM_AARCH64;
#endif
  return header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_machine == kMachine ? "" : "another machine";
}

std::string judge(const std::string& path, int depth) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  char start[256] = {};
  const ssize_t count = pread(file, start, sizeof(start) - 1, 0);
  std::string verdict;
  Elf64_Ehdr header{};
  if (count > 2 && start[0] == '#' && start[1] == '!') {
    const std::string line(start + 2, strcspn(start + 2, "\n"));
    if (depth < kScriptDepth) verdict = judge(script_interpreter(line), depth + 1);
  } else if (count >= static_cast<ssize_t>(sizeof(header)) && memcmp(start, ELFMAG, SELFMAG) == 0) {
    memcpy(&header, start, sizeof(header));
    verdict = judge_machine(header);
    if (verdict.empty()) verdict = judge_elf(file, header);
  }
  close(file);
  return verdict;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// What the kernel executes for a program: itself, or the interpreter of its #! line.
std::string executed(const std::string& path, int depth) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char start[256] = {};
  const ssize_t count = file < 0 ? 0 : pread(file, start, sizeof(start) - 1, 0);
  if (file >= 0) close(file);
  if (count < 2 || start[0] != '#' || start[1] != '!' || depth >= kScriptDepth) return path;
  return executed(script_interpreter(std::string(start + 2, strcspn(start + 2, "\n"))), depth + 1);
}

// The words of "[cd FOLDER &&] [exec] PROGRAM …"; none where a shell would do more than to start that program.
std::vector<std::string> only_command(const std::string& text) {
  constexpr char kPlain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:+@%=";
  std::vector<std::string> words;
  std::istringstream line(text);
  for (std::string word; line >> word;) words.push_back(word);
  const auto plain = [&](const std::string& word) { return word.find_first_not_of(kPlain) == std::string::npos; };
  if (words.size() > 3 && words[0] == "cd" && plain(words[1]) && words[2] == "&&") {
    words.erase(words.begin(), words.begin() + 3);
  }
  if (!words.empty() && words[0] == "exec") words.erase(words.begin());
  const bool assigns = !words.empty() && words[0].find('=') != std::string::npos;
  return !assigns && text.find('\n') == std::string::npos && std::all_of(words.begin(), words.end(), plain)
             ? words
             : std::vector<std::string>{};
}

}  // namespace

std::string unheld_reason(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  const std::string shell = base_name(command[0]);
  const bool is_shell = shell == "sh" || shell == "bash" || shell == "dash";
  if (is_shell && command.size() == 3 && command[1] == "-c" && getenv("BASH_ENV") == nullptr) {
    words = only_command(command[2]);
  }
  const std::string program = words.empty() ? "" : base_name(executed(find_program(words[0]), 0));
  if (program.rfind("python", 0) == 0 || program.rfind("pypy", 0) == 0) return "";
  return "the command does more than to start Python: make Python itself the container's command";
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

std::string untracked_file(const std::string& path) { return judge(path, 0); }

std::string untracked_reason(const std::vector<std::string>& command) {
  return command.empty() ? "" : untracked_file(find_program(command[0]));
}

}  // namespace falcon
