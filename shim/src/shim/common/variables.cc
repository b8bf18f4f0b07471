#include "common/variables.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>

#include "common/memory.h"

extern char** environ;

namespace falcon {
namespace {

constexpr size_t kMostVariables = 65536;
constexpr size_t kBlock = 64;  // pointers that are read at once

// Two places, so that a reader of the copy before is not disturbed.
Variables g_places[2];
std::atomic<const Variables*> g_current{nullptr};

// Whether `entry` is "NAME=…", up to the equals sign.
bool is_named(const char* entry, const char* name, size_t length) {
  char start[128];
  if (length + 1 > sizeof(start) || read_memory(entry, start, length + 1) != length + 1) return false;
  return memcmp(start, name, length) == 0 && start[length] == '=';
}

const char* find_value(const char* name) {
  const size_t length = strlen(name);
  char** table = __atomic_load_n(&environ, __ATOMIC_RELAXED);
  const char* entries[kBlock];
  for (size_t at = 0; table != nullptr && at < kMostVariables; at += kBlock) {
    const size_t count = read_memory(table + at, entries, sizeof(entries)) / sizeof(entries[0]);
    for (size_t index = 0; index < count; ++index) {
      if (entries[index] == nullptr) return nullptr;
      if (is_named(entries[index], name, length)) return entries[index] + length + 1;
    }
    if (count < kBlock) return nullptr;
  }
  return nullptr;
}

void copy_variables() {
  Variables* fresh = g_current.load(std::memory_order_acquire) == &g_places[0] ? &g_places[1] : &g_places[0];
  read_variable("FALCON_HOLD", fresh->hold, sizeof(fresh->hold));
  read_variable("MASTER_ADDR", fresh->master_address, sizeof(fresh->master_address));
  fresh->master_port = read_number("MASTER_PORT", 0);
  g_current.store(fresh, std::memory_order_release);
}

__attribute__((constructor)) void copy_at_load() { copy_variables(); }

}  // namespace

const Variables& variables() {
  const Variables* known = g_current.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  copy_variables();  // a constructor of another library runs before ours
  return *g_current.load(std::memory_order_acquire);
}

bool read_variable(const char* name, char* value, size_t size) {
  value[0] = '\0';
  const char* found = find_value(name);
  if (found == nullptr) return false;
  const size_t count = std::min(read_memory(found, value, size), size - 1);
  value[count] = '\0';
  return true;
}

int read_number(const char* name, int fallback) {
  char text[32];
  if (!read_variable(name, text, sizeof(text)) || text[0] == '\0') return fallback;
  char* end = nullptr;
  const long value = strtol(text, &end, 10);
  return *end == '\0' && value >= 0 && value <= INT_MAX ? static_cast<int>(value) : fallback;
}

}  // namespace falcon

extern "C" void falcon_read_variables() { falcon::copy_variables(); }
