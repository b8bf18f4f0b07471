#include "common/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace falcon {
namespace {

constexpr size_t kMostCopied = 1024;  // files of a folder of ours

}  // namespace

std::string read_file(const std::string& path) {
  std::string content;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return content;
  char buffer[16384];
  ssize_t count = 0;
  while ((count = read(file, buffer, sizeof(buffer))) > 0) content.append(buffer, static_cast<size_t>(count));
  close(file);
  return content;
}

std::string read_regular(const std::string& path, size_t most) {
  std::string content;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat about{};
  if (file >= 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode)) {
    content.resize(std::min(most, static_cast<size_t>(about.st_size)));
    const ssize_t count = pread(file, content.data(), content.size(), 0);
    content.resize(count > 0 ? static_cast<size_t>(count) : 0);
  }
  if (file >= 0) close(file);
  return content;
}

bool write_all(int file, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t written = write(file, bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes += written;
    count -= static_cast<size_t>(written);
  }
  return true;
}

bool sync_folder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return false;
  const bool done = fsync(folder) == 0 || errno == EINVAL;  // EINVAL: this file system needs none
  const int error = errno;
  close(folder);
  errno = error;
  return done;
}

bool write_file(const std::string& path, const std::string& content, int mode) {
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());  // a training process may have put a FIFO or a link there
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (file < 0) return false;
  if (!write_all(file, content.data(), content.size())) {
    close(file);
    unlink(fresh.c_str());
    return false;
  }
  fchmod(file, static_cast<mode_t>(mode));
  close(file);
  return rename(fresh.c_str(), path.c_str()) == 0;
}

int fresh_file(const std::string& path) {
  const std::string made = path + ".new";
  unlink(made.c_str());
  const int file = open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file < 0) return -1;
  if (rename(made.c_str(), path.c_str()) != 0) {
    const int error = errno;
    close(file);
    errno = error;
    return -1;
  }
  fchmod(file, 0644);  // whatever the umask
  return file;
}

bool copy_file(const std::string& from, const std::string& to, int mode) {
  const std::string content = read_file(from);
  return !content.empty() && write_file(to, content, mode);
}

namespace {

// Readable to the agent, who is another user, under any umask. False with errno set.
bool make_readable(const std::string& path) { return mkdir(path.c_str(), 0755) == 0 && chmod(path.c_str(), 0755) == 0; }

}  // namespace

bool make_folder(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    make_readable(path.substr(0, slash));
  }
  return make_readable(path) || errno == EEXIST;
}

std::vector<std::string> list_files(const std::string& folder, size_t most) {
  std::vector<std::string> found;
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return found;
  while (const dirent* entry = readdir(entries)) {
    if (found.size() < most && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      found.emplace_back(entry->d_name);
    }
  }
  closedir(entries);
  return found;
}

bool copy_folder(const std::string& from, const std::string& to) {
  const std::vector<std::string> names = list_files(from, kMostCopied);
  if (names.empty()) return true;
  if (!make_folder(to)) return false;
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    const std::string source = from + "/" + name;
    struct stat about{};
    if (stat(source.c_str(), &about) != 0) return false;
    return S_ISDIR(about.st_mode) ? copy_folder(source, to + "/" + name) : copy_file(source, to + "/" + name, 0644);
  });
}

}  // namespace falcon
