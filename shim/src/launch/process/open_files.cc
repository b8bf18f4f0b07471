#include "process/open_files.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <string>

namespace falcon {
namespace {

// From Linux 6.2 on, the folder's size is the number of its entries. Before, it is 0, and the entries are counted.
int64_t count_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  struct stat info{};
  if (stat(folder.c_str(), &info) == 0 && info.st_size > 0) return info.st_size;
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return -1;
  int64_t count = -2;  // "." and ".."
  while (readdir(entries) != nullptr) ++count;
  closedir(entries);
  return count;
}

}  // namespace

std::optional<OpenFiles> most_open_files(pid_t root, const std::vector<Process>& processes) {
  std::optional<OpenFiles> most;
  for (const pid_t pid : descendants(root, processes)) {
    rlimit limit{};
    if (prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    const OpenFiles found{count_of(pid), static_cast<int64_t>(limit.rlim_cur)};
    if (found.count < 0 || found.limit <= 0) continue;
    const auto share = [](const OpenFiles& of) {
      return static_cast<double>(of.count) / static_cast<double>(of.limit);
    };
    if (!most || share(found) > share(*most)) most = found;
  }
  return most;
}

}  // namespace falcon
