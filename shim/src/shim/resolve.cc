#include "resolve.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

namespace falcon {
namespace {

struct Search {
  const char* symbol;
  const void* ours;
  void* found;
};

int look(dl_phdr_info* object, size_t /*size*/, void* data) {
  auto* search = static_cast<Search*>(data);
  if (object->dlpi_name == nullptr || object->dlpi_name[0] == '\0') return 0;
  void* handle = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return 0;
  void* address = dlsym(handle, search->symbol);
  dlclose(handle);  // NOLOAD only counted a reference; the object stays
  if (address == nullptr || address == search->ours) return 0;
  search->found = address;
  return 1;
}

}  // namespace

void* resolve_original(const char* symbol, const void* ours) {
  // First whoever comes after us in the global scope: another preloaded hook keeps its place.
  void* next = dlsym(RTLD_NEXT, symbol);
  if (next != nullptr && next != ours) return next;
  Search search{symbol, ours, nullptr};
  dl_iterate_phdr(look, &search);
  return search.found;
}

}  // namespace falcon
