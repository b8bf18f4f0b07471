// Defines what the copies of a folder need of their process, so that a test can provide it instead.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

namespace falcon {

struct Surroundings {
  std::function<int64_t()> now_ns;                        // a clock that only goes forward
  std::function<void(int64_t)> pause;                     // for so long [ns]
  std::function<std::set<std::string>()> writing;         // files of the script's folder that are open for writing
  std::function<bool()> somebody_gone;                    // whether a process has ended since it was asked last
  std::function<bool(const std::string&)> ends_as_whole;  // whether a file proves by its content that it is whole
  std::function<bool(int64_t)> progress;                  // so many bytes have been copied; false stops the copy
  std::function<bool()> goes_on;                          // false where the filling is called off
  std::function<bool()> in_time;                          // false where what is left to fill is to become links
};

}  // namespace falcon
