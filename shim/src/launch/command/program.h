// Determines what a command would execute, from the files, before it is started.
#pragma once

#include <string>
#include <vector>

namespace falcon {

// The reason that may yet prove wrong: a static program may start others that are not.
constexpr char kStatic[] = "static";

// Why the shim cannot be preloaded into the program ("musl", "static", "another machine"), or empty where it can.
// Scripts are followed to their interpreters; a file that cannot be read is left to the loader to judge.
std::string untracked_reason(const std::vector<std::string>& command);

// The same for one executable file.
std::string untracked_file(const std::string& path);

// Why this command's interpreter cannot wait before its program, or empty where it can: the command is Python, a
// program that Python runs by its #! line, or a shell that does nothing but start one of these.
std::string unheld_reason(const std::vector<std::string>& command);

// Where PATH finds the program; empty if nowhere.
std::string find_program(const std::string& name);

}  // namespace falcon
