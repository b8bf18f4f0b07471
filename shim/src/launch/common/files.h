// Writes small files that appear whole: under a temporary name first, and then renamed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace falcon {

// The whole file, or an empty string where it cannot be read.
std::string read_file(const std::string& path);

// At most `most` bytes of a file that a training process may have made: empty for what is no regular file.
std::string read_regular(const std::string& path, size_t most);

// False with errno set.
bool write_all(int file, const char* bytes, size_t count);

// The names in a folder are on disk; false with errno set.
bool sync_folder(const std::string& path);

// False with errno set.
bool write_file(const std::string& path, const std::string& content, int mode = 0644);

// A new file in the place of any other, open for writing and readable to everybody. -1 with errno set.
int fresh_file(const std::string& path);

bool copy_file(const std::string& from, const std::string& to, int mode);

// The files of a folder and of the folders in it, readable to everybody; true where there is no such folder.
bool copy_folder(const std::string& from, const std::string& to);

// Folders on the way are made, too. False with errno set.
bool make_folder(const std::string& path);

// The names in a folder, in no order; no more than `most`.
std::vector<std::string> list_files(const std::string& folder, size_t most);

}  // namespace falcon
