#include "nccl/profiler_driver.h"

#include <dlfcn.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

char g_places[64];

namespace {

void* g_library = nullptr;

template <typename T>
Field field(size_t at, const T& value) {
  return {at, &value, sizeof(T)};
}

}  // namespace

bool open_plugin() {
  const char* plugin = getenv("NCCL_PROFILER_PLUGIN");
  if (plugin == nullptr) return false;
  puts("a stand-in for NCCL's side of the profiler interface, v1 to v5");
  // NOLINTNEXTLINE(clang-analyzer-optin.taint.GenericTaint): as NCCL does
  g_library = dlopen(strcmp(plugin, "STATIC_PLUGIN") == 0 ? nullptr : plugin, RTLD_NOW | RTLD_LOCAL);
  if (g_library == nullptr) fprintf(stderr, "%s\n", dlerror());
  return g_library != nullptr;
}

const Table& table(int version) {
  const std::string name = "ncclProfiler_v" + std::to_string(version);
  return *static_cast<const Table*>(dlsym(g_library, name.c_str()));
}

Made& made(int version) {
  static std::array<Made, 6> all{};
  return all.at(static_cast<size_t>(version));
}

void begin(int version) {
  Made& mine = made(version);
  mine.context = &g_places[0];
  mine.mask = 0;
  void* init = table(version).init;
  int answer = -1;
  if (version < 4) answer = reinterpret_cast<InitV1>(init)(&mine.context, &mine.mask);
  if (version == 4) answer = reinterpret_cast<InitV4>(init)(&mine.context, &mine.mask, "x", 77, 1, 8, 5, nullptr);
  if (version == 5) answer = reinterpret_cast<InitV5>(init)(&mine.context, 77, &mine.mask, "x", 1, 8, 5, nullptr);
  CHECK(answer == 0 && mine.context != nullptr);
  CHECK(strcmp(table(version).name, "falcon") == 0);
  CHECK(mine.mask == (version < 5 ? kColl | kP2p : kColl | kP2p | kGroupApi | kCollApi | kP2pApi));
}

// What is not filled in is 0xEE, as after NCCL's uninitialised descriptors.
void* started(int version, uint64_t type, void* parent, std::initializer_list<Field> fields) {
  alignas(8) unsigned char descriptor[256];
  memset(descriptor, 0xEE, sizeof(descriptor));
  const auto narrow = static_cast<uint8_t>(type);
  if (version < 5) memcpy(descriptor, &narrow, 1);
  if (version >= 5) memcpy(descriptor, &type, sizeof(type));
  memcpy(descriptor + 8, &parent, sizeof(parent));
  for (const Field& field : fields) memcpy(descriptor + field.at, field.value, field.bytes);
  void* handle = &g_places[0];  // must be overwritten
  errno = ERANGE;
  CHECK(table(version).start(made(version).context, &handle, descriptor) == 0);
  CHECK(errno == ERANGE);
  return handle;
}

void* collective(int version, uint8_t number, const char* name, size_t count, int root, uint8_t type_number,
                 const char* type, uint8_t channels, void* parent) {
  if (version == 1) {
    return started(1, kColl, parent, {field(48, number), field(72, count), field(80, root), field(84, type_number)});
  }
  if (version < 4) {
    return started(version, kColl, parent, {field(48, name), field(72, count), field(80, root), field(88, type)});
  }
  return started(version, kColl, parent,
                 {field(32, name), field(56, count), field(64, root), field(72, type), field(80, channels)});
}

void* single(int version, uint8_t number, const char* name, size_t count, int peer, uint8_t type_number,
             const char* type, void* parent) {
  const uint8_t channels = 1;
  if (version == 1) {
    return started(1, kP2p, parent, {field(40, number), field(56, type_number), field(64, count), field(72, peer)});
  }
  if (version < 4) {
    return started(version, kP2p, parent, {field(40, name), field(56, type), field(64, count), field(72, peer)});
  }
  return started(version, kP2p, parent,
                 {field(24, name), field(40, type), field(48, count), field(56, peer), field(60, channels)});
}

void* collective_api(const char* name, size_t count, const char* type, int root, void* stream, bool captured,
                     void* parent) {
  return started(
      5, kCollApi, parent,
      {field(24, name), field(32, count), field(40, type), field(48, root), field(56, stream), field(64, captured)});
}

void* single_api(const char* name, size_t count, const char* type, void* stream, bool captured, void* parent) {
  return started(5, kP2pApi, parent,
                 {field(24, name), field(32, count), field(40, type), field(48, stream), field(56, captured)});
}

void* group_api(int depth) {
  const bool captured = false;
  return started(5, kGroupApi, nullptr, {field(24, captured), field(28, depth)});
}

void* kernel_channel(int version, void* parent, uint8_t channel, uint64_t start_ns) {
  return started(version, kKernelChannel, parent, {field(24, channel), field(32, start_ns)});
}

void kernel_channel_ends(int version, void* handle, uint64_t stop_ns) {
  if (handle == nullptr) return;  // as NCCL does
  CHECK(table(version).state(handle, kKernelChannelStop, &stop_ns) == 0);
  CHECK(table(version).stop(handle) == 0);
}
