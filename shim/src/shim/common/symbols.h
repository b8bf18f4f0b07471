// Finds the function that a hook stands in for.
#pragma once

namespace falcon {

// The address of `symbol` in the library that defines it, never `ours`. RTLD_NEXT does not see a library that was
// dlopen'ed (every Python extension), so the loaded objects are asked one by one. Null if no loaded object has it.
void* resolve_original(const char* symbol, const void* ours);

// The same for a function of NCCL: its `p…` twin where the library has one, since a program may itself interpose the
// other.
void* resolve_nccl(const char* symbol, const void* ours);

// Ends the program, saying why: its own library calls a function that no loaded object has, which cannot be.
[[noreturn]] void missing_original();

}  // namespace falcon
