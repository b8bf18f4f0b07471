// The profiler plugin, driven as NCCL drives it. This program is a stand-in for NCCL (which asks for its plugin only
// with a GPU): it opens the library that NCCL_PROFILER_PLUGIN names, takes one version of the interface after the
// other, and hands out descriptors that are laid out here by offset, from NCCL's public headers, apart from the shim's
// own declarations. CTest sets LD_PRELOAD, NCCL_PROFILER_PLUGIN, FALCON_RING_DIR and FALCON_CONTROL.
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "checking.h"
#include "control_file.h"
#include "standin_nccl.h"

using falcon::Kind;
using falcon::Op;
using falcon::Record;

namespace {

// Bits of the mask and types of events.
constexpr int kGroup = 1;
constexpr int kColl = 2;
constexpr int kP2p = 4;
constexpr int kKernelChannel = 64;
constexpr int kGroupApi = 256;
constexpr int kCollApi = 512;
constexpr int kP2pApi = 1024;
constexpr int kKernelChannelStop = 22;

struct Table {
  const char* name;
  void* init;
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*state)(void*, int, void*);
  int (*finalize)(void*);
};
using InitV1 = int (*)(void**, int*);
using InitV4 = int (*)(void**, int*, const char*, uint64_t, int, int, int, void*);
using InitV5 = int (*)(void**, uint64_t, int*, const char*, int, int, int, void*);

void* g_library = nullptr;
char* g_control = nullptr;
View g_ring{};
char g_places[64];  // streams are addresses in here

falcon::ControlHeader& control() { return *reinterpret_cast<falcon::ControlHeader*>(g_control); }
void set_mode(falcon::Mode mode) { control().mode = static_cast<uint32_t>(mode); }
uint64_t head() { return g_ring.header->head.load(); }
const Record& last(uint64_t back = 0) { return g_ring.slots[head() - 1 - back]; }

const Table& table(int version) {
  const std::string name = "ncclProfiler_v" + std::to_string(version);
  return *static_cast<const Table*>(dlsym(g_library, name.c_str()));
}

struct Field {
  size_t at;
  const void* value;
  size_t bytes;
};
template <typename T>
Field field(size_t at, const T& value) {
  return {at, &value, sizeof(T)};
}

// An event descriptor; what is not filled in is 0xEE, as after NCCL's uninitialised ones.
struct Descriptor {
  alignas(8) unsigned char bytes[256];
  Descriptor(int version, uint64_t type, void* parent, std::initializer_list<Field> fields) : bytes{} {
    memset(bytes, 0xEE, sizeof(bytes));
    const auto narrow = static_cast<uint8_t>(type);
    if (version < 5) memcpy(bytes, &narrow, 1);
    if (version >= 5) memcpy(bytes, &type, sizeof(type));
    memcpy(bytes + 8, &parent, sizeof(parent));
    for (const Field& one : fields) memcpy(bytes + one.at, one.value, one.bytes);
  }
};

void* started(int version, void* context, Descriptor descriptor) {
  void* handle = &g_places[0];  // must be overwritten
  errno = ERANGE;
  CHECK(table(version).start(context, &handle, descriptor.bytes) == 0);
  CHECK(errno == ERANGE);
  return handle;
}

struct Made {
  void* context;
  int mask;
};

Made& made(int version) {
  static Made all[6] = {};
  return all[version];
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

void* collective(int version, uint8_t number, const char* name, size_t count, int root, uint8_t type_number,
                 const char* type, uint8_t channels = 2, void* parent = nullptr) {
  void* context = made(version).context;
  if (version == 1) {
    return started(1, context,
                   {1, kColl, parent, {field(48, number), field(72, count), field(80, root), field(84, type_number)}});
  }
  if (version < 4) {
    return started(version, context,
                   {version, kColl, parent, {field(48, name), field(72, count), field(80, root), field(88, type)}});
  }
  return started(version, context,
                 {version,
                  kColl,
                  parent,
                  {field(32, name), field(56, count), field(64, root), field(72, type), field(80, channels)}});
}

void* single(int version, uint8_t number, const char* name, size_t count, int peer, uint8_t type_number,
             const char* type, void* parent = nullptr) {
  void* context = made(version).context;
  const uint8_t channels = 1;
  if (version == 1) {
    return started(1, context,
                   {1, kP2p, parent, {field(40, number), field(56, type_number), field(64, count), field(72, peer)}});
  }
  if (version < 4) {
    return started(version, context,
                   {version, kP2p, parent, {field(40, name), field(56, type), field(64, count), field(72, peer)}});
  }
  return started(version, context,
                 {version,
                  kP2p,
                  parent,
                  {field(24, name), field(40, type), field(48, count), field(56, peer), field(60, channels)}});
}

void* collective_api(const char* name, size_t count, const char* type, int root, void* stream, bool captured,
                     void* parent) {
  return started(
      5, made(5).context,
      {5,
       kCollApi,
       parent,
       {field(24, name), field(32, count), field(40, type), field(48, root), field(56, stream), field(64, captured)}});
}

void* single_api(const char* name, size_t count, const char* type, void* stream, bool captured, void* parent) {
  return started(5, made(5).context,
                 {5,
                  kP2pApi,
                  parent,
                  {field(24, name), field(32, count), field(40, type), field(48, stream), field(56, captured)}});
}

void* group_api(int depth) {
  const bool captured = false;
  return started(5, made(5).context, {5, kGroupApi, nullptr, {field(24, captured), field(28, depth)}});
}

void* kernel_channel(int version, void* parent, uint8_t channel, uint64_t start_ns) {
  return started(version, made(version).context,
                 {version, kKernelChannel, parent, {field(24, channel), field(32, start_ns)}});
}

void kernel_channel_ends(int version, void* handle, uint64_t stop_ns) {
  if (handle == nullptr) return;  // as NCCL does
  CHECK(table(version).state(handle, kKernelChannelStop, &stop_ns) == 0);
  CHECK(table(version).stop(handle) == 0);
}

void recorded(Op op, uint64_t bytes, int32_t peer, uint8_t dtype, uint64_t comm, uint32_t number) {
  const Record& record = last();
  CHECK(record.kind == Kind::kEnqueued && record.op == op && record.bytes == bytes && record.peer_or_root == peer);
  CHECK(record.dtype == dtype && record.comm == comm && record.comm_seq == number && record.duration_ns == 0);
  CHECK(falcon::check_of(record) == record.check);
}

void a_communicator_makes_a_rank(const std::string& folder) {
  CHECK(rings(folder).empty());
  begin(1);
  CHECK(rings(folder).size() == 1);
  g_ring = view(rings(folder)[0]);
  CHECK(head() == 0);  // before v4 nobody tells its rank and size
  begin(2);
  begin(3);
  CHECK(head() == 0);
  begin(4);
  CHECK(head() == 1 && last().kind == Kind::kDescriptor && last().comm == 4 && last().group == 8 &&
        last().peer_or_root == 5);
  begin(5);
  CHECK(head() == 2 && last().kind == Kind::kDescriptor && last().comm == 5 && last().group == 8);
}

void each_call_before_v5(int version) {
  const auto comm = static_cast<uint64_t>(version);
  // The numbers are ncclFunc_t's and ncclDataType_t's, which v1 hands out instead of names.
  collective(version, 4, "AllReduce", 1000, 0, 7, "ncclFloat32");
  recorded(Op::kAllReduce, 4000, -1, 9, comm, 0);
  CHECK(last().flags == 0 && last().group == 0 && last().stream == 0);
  collective(version, 0, "Broadcast", 7, 3, 8, "ncclFloat64");
  recorded(Op::kBroadcast, 56, 3, 10, comm, 1);
  collective(version, 1, "Reduce", 10, 2, 9, "ncclBfloat16");
  recorded(Op::kReduce, 20, 2, 8, comm, 2);
  collective(version, 2, "AllGather", 5, 0, 6, "ncclFloat16");
  recorded(Op::kAllGather, 10, -1, 7, comm, 3);
  collective(version, 3, "ReduceScatter", 5, 0, 4, "ncclInt64");
  recorded(Op::kReduceScatter, 40, -1, 5, comm, 4);
  collective(version, 99, "NewCollective", 5, 0, 99, "Unknown");  // of a later release
  recorded(Op::kUnknown, 0, -1, 0, comm, 5);
  single(version, 6, "Send", 3, 6, 7, "ncclFloat32");
  recorded(Op::kSend, 12, 6, 9, comm | falcon::kPointToPoint, 0);
  CHECK(last(1).kind == Kind::kDescriptor && last(1).comm == (comm | falcon::kPointToPoint) && last(1).bytes == comm);
  single(version, 7, "Recv", 3, 4, 0, "ncclInt8");
  recorded(Op::kRecv, 3, 4, 1, comm | falcon::kPointToPoint, 1);
  const uint64_t before = head();
  CHECK(started(version, made(version).context, {version, kGroup, nullptr, {}}) == nullptr);  // not asked for
  CHECK(head() == before);
}

void each_call_of_v5() {
  void* const alone = group_api(1);
  CHECK(alone == nullptr);
  void* api = collective_api("AllReduce", 1000, "ncclFloat32", 0, &g_places[1], false, alone);
  recorded(Op::kAllReduce, 4000, -1, 9, 5, 0);
  CHECK(last().stream == 1 && last().group == 0 && last().flags == 0);
  const uint64_t before = head();
  CHECK(collective(5, 4, "AllReduce", 1000, 0, 7, "ncclFloat32", 2, api) == nullptr && head() == before);  // the same
  CHECK(table(5).stop(api) == 0);
  collective_api("Broadcast", 7, "ncclFloat64", 3, &g_places[2], true, alone);
  recorded(Op::kBroadcast, 56, 3, 10, 5, 1);
  CHECK(last().stream == 2 && last().flags == falcon::kCaptured);
  collective_api("AlltoAll", 5, "ncclInt32", 0, nullptr, false, alone);
  recorded(Op::kAllToAll, 160, -1, 3, 5, 2);  // to each of 8 ranks
  CHECK(last().stream == 0);
  const uint64_t whole = head();
  single(5, 6, "Send", 5, 1, 2, "ncclInt32");  // what it is made of is a part of it
  CHECK(head() == whole);
  collective_api("Gather", 5, "ncclUint32", 2, nullptr, false, alone);
  recorded(Op::kGather, 20, 2, 4, 5, 3);
  collective_api("Scatter", 5, "ncclUint64", 1, nullptr, false, alone);
  recorded(Op::kScatter, 40, 1, 6, 5, 4);
}

void a_group_of_v5_has_one_number() {
  void* group = group_api(2);
  void* send = single_api("Send", 3, "ncclFloat32", &g_places[1], false, group);
  void* receive = single_api("Recv", 3, "ncclFloat32", &g_places[2], true, group);
  const uint64_t before = head();
  single(5, 7, "Recv", 3, 4, 7, "ncclFloat32", receive);  // NCCL orders them as it likes
  recorded(Op::kRecv, 12, 4, 9, 5 | falcon::kPointToPoint, 0);
  CHECK(last().group == 1 && last().stream == 2 && last().flags == falcon::kCaptured);
  single(5, 6, "Send", 3, 6, 7, "ncclFloat32", send);
  recorded(Op::kSend, 12, 6, 9, 5 | falcon::kPointToPoint, 1);
  CHECK(last().group == 1 && last().stream == 1 && last().flags == 0);
  CHECK(head() == before + 3);                         // and the descriptor
  single(5, 6, "Send", 3, 6, 7, "ncclFloat32", send);  // its graph runs again
  CHECK(head() == before + 3);
  single_api("Send", 3, "ncclFloat32", &g_places[1], false, group);
  single(5, 6, "Send", 3, 6, 7, "ncclFloat32");  // a release that does not say which call it is of
  recorded(Op::kSend, 12, 6, 9, 5 | falcon::kPointToPoint, 2);
  CHECK(table(5).state(group, 23, nullptr) == 0 && table(5).stop(group) == 0);
  CHECK(group_api(2) != group);
}

// The number of the first call that is timed: the switch is read when the one before it is made.
void the_device_is_timed_in_profile_mode(int version) {
  const int quiet = made(version).mask;
  const auto call = [version] {
    if (version == 4) return collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 2);
    void* api = collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
    return collective(5, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 2, api);
  };
  CHECK(call() == nullptr);
  set_mode(falcon::Mode::kProfile);
  CHECK(call() == nullptr);
  CHECK(made(version).mask == (quiet | kKernelChannel));
  void* watched = call();
  const uint32_t number = last().comm_seq;
  CHECK(watched != nullptr);
  const uint64_t before = head();
  void* first = kernel_channel(version, watched, 0, 5000);
  void* second = kernel_channel(version, watched, 1, 4000);
  CHECK(first != nullptr && second != nullptr);
  CHECK(table(version).stop(watched) == 0);  // enqueued; says nothing of the device
  kernel_channel_ends(version, second, 9000);
  CHECK(head() == before);
  kernel_channel_ends(version, first, 8000);
  CHECK(head() == before + 1 && last().kind == Kind::kCompleted && last().comm == static_cast<uint64_t>(version));
  CHECK(last().comm_seq == number && last().duration_ns == 5000 && last().op == Op::kAllReduce);
  kernel_channel_ends(version, first, 9999);  // stale
  kernel_channel_ends(version, kernel_channel(version, watched, 0, 1), 2);
  CHECK(head() == before + 1);
  set_mode(falcon::Mode::kTrack);
  call();
  CHECK(made(version).mask == quiet);
  CHECK(kernel_channel(version, nullptr, 0, 1) == nullptr);
}

void a_send_is_timed() {
  set_mode(falcon::Mode::kProfile);
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  void* api = single_api("Send", 3, "ncclFloat32", nullptr, false, nullptr);
  void* watched = single(5, 6, "Send", 3, 6, 7, "ncclFloat32", api);
  const uint32_t number = last().comm_seq;
  kernel_channel_ends(5, kernel_channel(5, watched, 3, 100), 350);
  CHECK(last().kind == Kind::kCompleted && last().comm == (5 | falcon::kPointToPoint) && last().comm_seq == number);
  CHECK(last().duration_ns == 250);
  CHECK(collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, true, nullptr) == nullptr);  // runs with its graph
  set_mode(falcon::Mode::kTrack);
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
}

void a_call_whose_end_is_never_told_gives_its_place_up() {
  set_mode(falcon::Mode::kProfile);
  collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32");
  void* forgotten = collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 1);
  for (int i = 0; i < 5000; ++i) CHECK(collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 1) != nullptr);
  const uint64_t before = head();
  kernel_channel_ends(4, kernel_channel(4, forgotten, 0, 1), 2);
  CHECK(head() == before);
  set_mode(falcon::Mode::kTrack);
  collective(4, 4, "AllReduce", 10, 0, 7, "ncclFloat32");
}

void switched_off_calls_are_counted_and_not_recorded() {
  const uint64_t before = head();
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  const uint32_t number = last().comm_seq;
  set_mode(falcon::Mode::kOff);
  control().sample_every = 1;
  control().cycle_calls = 1;
  for (int i = 0; i < 3; ++i) collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  CHECK(head() == before + 1 && (made(5).mask & kKernelChannel) == 0);
  control().sample_every = 0;
  set_mode(falcon::Mode::kTrack);
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  CHECK(head() == before + 2 && last().comm_seq == number + 4);
}

void several_threads_at_once() {
  constexpr int kThreads = 4;
  constexpr int kCalls = 1000;
  set_mode(falcon::Mode::kProfile);
  collective_api("AllReduce", 10, "ncclFloat32", 0, nullptr, false, nullptr);
  const uint64_t before = head();
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([] {
      for (int i = 0; i < kCalls; ++i) {
        void* api = collective_api("AllReduce", 10, "ncclFloat32", 0, &g_places[1], false, group_api(2));
        void* watched = collective(5, 4, "AllReduce", 10, 0, 7, "ncclFloat32", 2, api);
        for (uint8_t channel = 0; channel < 2; ++channel) {
          kernel_channel_ends(5, kernel_channel(5, watched, channel, 10), 20);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t enqueued = 0;
  uint64_t completed = 0;
  for (uint64_t i = before; i < head(); ++i) {
    enqueued += g_ring.slots[i].kind == Kind::kEnqueued ? 1 : 0;
    completed += g_ring.slots[i].kind == Kind::kCompleted ? 1 : 0;
  }
  CHECK(enqueued == static_cast<uint64_t>(kThreads) * kCalls);
  CHECK(completed == enqueued);
  set_mode(falcon::Mode::kTrack);
}

void what_cannot_be_does_no_harm() {
  const uint64_t before = head();
  for (int version = 1; version <= 5; ++version) {
    void* handle = nullptr;
    CHECK(table(version).start(nullptr, &handle, nullptr) == 0 && handle == nullptr);
    CHECK(table(version).start(made(version).context, &handle, nullptr) == 0 && handle == nullptr);
    CHECK(table(version).start(made(version).context, nullptr, nullptr) == 0);
    CHECK(table(version).stop(nullptr) == 0 && table(version).state(nullptr, 3, nullptr) == 0);
    CHECK(table(version).stop(&g_places[0]) == 0 && table(version).finalize(nullptr) == 0);
    CHECK(started(version, made(version).context, {version, 128, nullptr, {}}) == nullptr);
  }
  CHECK(head() == before);
}

void a_communicator_ends() {
  for (int version = 1; version <= 5; ++version) {
    const uint64_t before = head();
    CHECK(table(version).finalize(made(version).context) == 0);
    CHECK(head() == before + 1 && last().kind == Kind::kDescriptor && last().flags == falcon::kEnded);
    CHECK(last().comm == static_cast<uint64_t>(version));
  }
}

// A program that calls NCCL through the hooks, with a plugin all the same: nothing is told twice.
void an_nccl_that_the_hooks_see_is_left_to_them() {
  void* comm = nullptr;
  StandinUniqueId id{};
  standin_made = &g_places[9];
  CHECK(ncclCommInitRank(&comm, 4, id, 2) == 0);
  void* context = &g_places[0];
  int mask = 0;
  const uint64_t before = head();
  const auto init = reinterpret_cast<InitV5>(table(5).init);
  CHECK(standin_init_profiler(init, &context, &mask, 4, 2) == 0);
  CHECK(context == nullptr && mask == 0 && head() == before);
  // Another NCCL in the same process, that they do not see.
  CHECK(init(&context, 1, &mask, nullptr, 1, 4, 2, nullptr) == 0 && context != nullptr && mask != 0);
  CHECK(head() == before + 1);
  CHECK(table(5).finalize(context) == 0);
}

[[maybe_unused]] void a_process_without_a_place_for_rings_is_told_nothing() {
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("FALCON_RING_DIR");
    void* context = &g_places[0];
    int mask = 0;
    const int answer = reinterpret_cast<InitV4>(table(4).init)(&context, &mask, "x", 1, 1, 2, 0, nullptr);
    _exit(answer == 0 && context == nullptr && mask == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

}  // namespace

int main() {
  const char* folder = getenv("FALCON_RING_DIR");
  const char* path = getenv("FALCON_CONTROL");
  const char* plugin = getenv("NCCL_PROFILER_PLUGIN");
  if (folder == nullptr || path == nullptr || plugin == nullptr) return 64;
  puts("a stand-in for NCCL's side of the profiler interface, v1 to v5");
  // NOLINTNEXTLINE(clang-analyzer-optin.taint.GenericTaint): as NCCL does
  g_library = dlopen(strcmp(plugin, "STATIC_PLUGIN") == 0 ? nullptr : plugin, RTLD_NOW | RTLD_LOCAL);
  if (g_library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  mkdir(folder, 0755);
  for (const std::string& old : rings(folder)) unlink(old.c_str());
  g_control = make_control(path);
  a_communicator_makes_a_rank(folder);
  for (int version = 1; version <= 4; ++version) each_call_before_v5(version);
  each_call_of_v5();
  a_group_of_v5_has_one_number();
  the_device_is_timed_in_profile_mode(4);
  the_device_is_timed_in_profile_mode(5);
  a_send_is_timed();
  a_call_whose_end_is_never_told_gives_its_place_up();
  switched_off_calls_are_counted_and_not_recorded();
  several_threads_at_once();
  what_cannot_be_does_no_harm();
  a_communicator_ends();
  an_nccl_that_the_hooks_see_is_left_to_them();
#ifndef FALCON_EMULATED
  a_process_without_a_place_for_rings_is_told_nothing();
#endif
  CHECK(rings(folder).size() == 1);
  for (const std::string& ring : rings(folder)) unlink(ring.c_str());
  return failures == 0 ? 0 : 1;
}
