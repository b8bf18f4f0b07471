// nccl_probe_linked / nccl_probe_dlopen: runs nccl_probe() of a library that this program is linked against, or dlopens
// (by LD_LIBRARY_PATH). PROBE_ABSENT in the environment: calls what this NCCL lacks, too.
#include <dlfcn.h>

#include <cstdlib>

#ifdef PROBE_LINKED
extern "C" void nccl_probe(bool call_absent);
#endif

int main() {
  const bool absent = getenv("PROBE_ABSENT") != nullptr;
#ifdef PROBE_LINKED
  nccl_probe(absent);
#else
  void* library = dlopen("libnccl_probe.so", RTLD_LAZY | RTLD_LOCAL);
  void* probe = library == nullptr ? nullptr : dlsym(library, "nccl_probe");
  if (probe == nullptr) return 1;
  reinterpret_cast<void (*)(bool)>(probe)(absent);
#endif
  return 0;
}
