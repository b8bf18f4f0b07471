// Finds the function that a hook stands in for.
#pragma once

namespace falcon {

// The address of `symbol` in the library that defines it, never in this one. RTLD_NEXT does not see a library that was
// dlopen'ed (every Python extension), so the objects that were loaded after this library are asked one by one. Null if
// none of them has it.
void* resolve_original(const char* symbol);

// The same for a function of NCCL: its `p…` twin where the library has one, since a program may itself interpose the
// other.
void* resolve_nccl(const char* symbol);

// Ends the program, saying why: its own library calls a function that no loaded object has, which cannot be.
[[noreturn]] void missing_original();

}  // namespace falcon
