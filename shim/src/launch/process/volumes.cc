#include "process/volumes.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <tuple>

#include "common/files.h"

namespace falcon {
namespace {

constexpr size_t kMost = 8;
constexpr size_t kMostPath = 120;
constexpr auto kEach = std::chrono::seconds(10);

// What the kernel shows of itself, and what no program fills.
bool is_pseudo(const std::string& type) {
  static const std::set<std::string> kPseudo = {"autofs",     "binfmt_misc", "bpf",    "cgroup",   "cgroup2",
                                                "configfs",   "debugfs",     "devpts", "devtmpfs", "fusectl",
                                                "hugetlbfs",  "mqueue",      "nsfs",   "proc",     "pstore",
                                                "securityfs", "squashfs",    "sysfs",  "tracefs"};
  return kPseudo.count(type) != 0;
}

bool is_below(const std::string& path, const std::string& folder) {
  return path == folder || path.compare(0, folder.size() + 1, folder + "/") == 0;
}

// Folders of Kubernetes, of the kernel and of Falcon. Of /dev, programs fill the shared memory alone.
bool is_of_others(const std::string& path) {
  if (path == "/dev/shm") return false;
  for (const char* folder : {"/dev", "/proc", "/sys", "/falcon", "/run/secrets", "/var/run/secrets"}) {
    if (is_below(path, folder)) return true;
  }
  return false;
}

// mountinfo writes a blank, a tab, a line's end and a backslash as three octal digits.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool escape = text[at] == '\\' && at + 3 < text.size();
    out += escape ? static_cast<char>((text[at + 1] - '0') * 64 + (text[at + 2] - '0') * 8 + (text[at + 3] - '0'))
                  : text[at];
    if (escape) at += 3;
  }
  return out;
}

}  // namespace

std::vector<std::string> writable_mounts(const std::string& mountinfo) {
  std::vector<std::string> found;
  bool has_root = false;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, path, options, word, type;
    fields >> id >> parent >> device >> root >> path >> options;
    while (fields >> word && word != "-") {
    }
    fields >> type;
    const bool read_only = ("," + options + ",").find(",ro,") != std::string::npos;
    path = unescaped(path);
    if (type.empty() || read_only || is_pseudo(type) || is_of_others(path) || path.size() > kMostPath) continue;
    // An image's own layer often lies on the disk of an emptyDir, whose path says more.
    has_root = has_root || path == "/";
    if (path != "/") found.push_back(path);
  }
  if (has_root) found.emplace_back("/");
  return found;
}

std::vector<Volume> read_volumes(const std::vector<std::string>& paths) {
  std::vector<Volume> volumes;
  std::set<dev_t> devices;
  std::set<std::tuple<uint64_t, uint64_t>> sizes;
  for (const std::string& path : paths) {
    struct stat info{};
    struct statvfs filled{};
    // Single files (/etc/hosts) lie on the node's disk.
    if (volumes.size() >= kMost || stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    if (statvfs(path.c_str(), &filled) != 0 || filled.f_blocks == 0) continue;
    // The image's own layer has a device of its own, but the size of the disk below it. Volumes may be of equal size.
    const bool is_new = devices.insert(info.st_dev).second;
    const bool new_size = sizes.insert({filled.f_blocks, filled.f_files}).second;
    if (!is_new || (path == "/" && !new_size)) continue;
    const auto unit = static_cast<int64_t>(filled.f_frsize);
    Volume volume;
    volume.path = path;
    volume.bytes = static_cast<int64_t>(filled.f_blocks - filled.f_bfree) * unit;
    volume.limit_bytes = volume.bytes + static_cast<int64_t>(filled.f_bavail) * unit;
    volume.files = static_cast<int64_t>(filled.f_files - filled.f_ffree);
    volume.limit_files = filled.f_files == 0 ? 0 : volume.files + static_cast<int64_t>(filled.f_favail);
    volumes.push_back(volume);
  }
  return volumes;
}

struct Volumes::Shared {
  std::mutex mutex;
  std::vector<Volume> newest;
};

Volumes::Volumes() : shared_(std::make_shared<Shared>()) {
  try {
    std::thread([shared = shared_] {
      while (true) {
        std::vector<Volume> volumes = read_volumes(writable_mounts(read_file("/proc/self/mountinfo")));
        {
          const std::lock_guard<std::mutex> lock(shared->mutex);
          shared->newest = std::move(volumes);
        }
        std::this_thread::sleep_for(kEach);
      }
    }).detach();
  } catch (const std::system_error& error) {
    fprintf(stderr, "falcon-launch: nothing is known of the volumes, since no thread can read them: %s\n",
            error.what());
  }
}

std::vector<Volume> Volumes::newest() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->newest;
}

}  // namespace falcon
