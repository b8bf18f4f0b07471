#include "common/symbols.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace falcon {
namespace {

// The name of the n-th loaded object of those that the loader put behind this library.
struct Turn {
  bool behind;
  int left;
  char name[4096];
};

// The address of an exported function of ours is no sign of this library: where a hook was preloaded in front, the
// loader gives that hook's address instead.
bool holds(const dl_phdr_info& object, uintptr_t address) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    if (segment.p_type == PT_LOAD && address - object.dlpi_addr - segment.p_vaddr < segment.p_memsz) return true;
  }
  return false;
}

int take_turn(dl_phdr_info* object, size_t /*size*/, void* data) {
  auto* turn = static_cast<Turn*>(data);
  if (!turn->behind) {
    turn->behind = holds(*object, reinterpret_cast<uintptr_t>(&holds));
    return 0;
  }
  if (object->dlpi_name == nullptr || object->dlpi_name[0] == '\0') return 0;
  if (turn->left-- > 0) return 0;
  snprintf(turn->name, sizeof(turn->name), "%s", object->dlpi_name);
  return 1;
}

void* look_in(const char* object, const char* symbol) {
  void* handle = dlopen(object, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  void* address = dlsym(handle, symbol);
  dlclose(handle);  // NOLOAD only counted a reference; the object stays
  return address;
}

}  // namespace

void* resolve_original(const char* symbol) {
  // First what comes after us in the global scope: another preloaded hook keeps its place.
  void* next = dlsym(RTLD_NEXT, symbol);
  if (next != nullptr) return next;
  // What was preloaded in front of us is passed over: a hook there that has called us would be called again, without
  // end. One object a walk: the walk holds a lock of the loader's, under which dlopen could wait for a thread that
  // waits for us.
  for (int n = 0;; ++n) {
    Turn turn{false, n, {}};
    if (dl_iterate_phdr(take_turn, &turn) == 0) return nullptr;
    void* found = look_in(turn.name, symbol);
    if (found != nullptr) return found;
  }
}

void* resolve_nccl(const char* symbol) {
  void* found = resolve_original(symbol);
  Dl_info where{};
  if (found == nullptr || dladdr(found, &where) == 0 || where.dli_fname == nullptr) return found;
  const char* slash = strrchr(where.dli_fname, '/');
  const char* name = slash == nullptr ? where.dli_fname : slash + 1;
  // Only in the library itself: another preloaded hook, which has no twin, keeps its place.
  if (strncmp(name, "libnccl", 7) != 0 && strncmp(name, "librccl", 7) != 0) return found;
  char twin[128];
  snprintf(twin, sizeof(twin), "p%s", symbol);
  void* handle = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return found;
  void* better = dlsym(handle, twin);
  dlclose(handle);
  return better == nullptr ? found : better;
}

void missing_original() {
  constexpr char kMessage[] = "falcon: the library that this program calls for a Gloo operation is not loaded\n";
  (void)!write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  abort();
}

}  // namespace falcon
