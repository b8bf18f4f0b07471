#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace falcon {

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

bool write_file(const std::string& path, const std::string& content, int mode) {
  const std::string fresh = path + ".new";
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (file < 0) return false;
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = write(file, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      close(file);
      unlink(fresh.c_str());
      return false;
    }
    done += static_cast<size_t>(count);
  }
  fchmod(file, static_cast<mode_t>(mode));
  close(file);
  return rename(fresh.c_str(), path.c_str()) == 0;
}

bool copy_file(const std::string& from, const std::string& to, int mode) {
  const std::string content = read_file(from);
  return !content.empty() && write_file(to, content, mode);
}

bool make_folder(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0755);
  }
  return mkdir(path.c_str(), 0755) == 0 || errno == EEXIST;
}

}  // namespace falcon
