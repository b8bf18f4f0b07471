// Finds the function that a hook stands in for.
#pragma once

namespace falcon {

// The address of `symbol` in the library that defines it, never `ours`. RTLD_NEXT does not see a library that was
// dlopen'ed (every Python extension), so the loaded objects are asked one by one. Null if no loaded object has it.
void* resolve_original(const char* symbol, const void* ours);

}  // namespace falcon
