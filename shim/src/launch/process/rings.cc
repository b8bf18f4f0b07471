#include "process/rings.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <set>
#include <tuple>
#include <utility>

namespace falcon {
namespace {

constexpr int kFar = INT_MAX;  // not below anything that we started
constexpr int kMostGenerations = 64;

// How the processes of this pid namespace descend from what we started.
class Family {
 public:
  Family(const std::vector<Process>& processes, const std::vector<pid_t>& started)
      : started_(started.begin(), started.end()) {
    for (const Process& process : processes) {
      if (!process.ended) living_[process.pid] = process;
    }
    for (const Process& process : processes) parents_[process.pid] = process.parent;
  }

  bool lives(pid_t pid) const { return living_.count(pid) != 0; }

  uint64_t started_at(pid_t pid) const {
    const auto found = living_.find(pid);
    return found == living_.end() ? UINT64_MAX : found->second.started;
  }

  // Generations from a process that we started; kFar where there is none above it.
  int distance(pid_t pid) const {
    for (int up = 0; up < kMostGenerations; ++up) {
      if (started_.count(pid) != 0) return up;
      const auto parent = parents_.find(pid);
      if (parent == parents_.end()) return kFar;
      pid = parent->second;
    }
    return kFar;
  }

  bool is_below_any(pid_t pid, const std::set<pid_t>& others) const {
    for (int up = 0; up < kMostGenerations; ++up) {
      const auto parent = parents_.find(pid);
      if (parent == parents_.end()) return false;
      pid = parent->second;
      if (others.count(pid) != 0) return true;
    }
    return false;
  }

 private:
  std::set<pid_t> started_;
  std::map<pid_t, Process> living_;
  std::map<pid_t, pid_t> parents_;
};

}  // namespace

void Rings::begin(int generation, int first_rank, int count) {
  generation_ = generation;
  first_rank_ = first_rank;
  count_ = count;
  own_.clear();
  superseded_.clear();
}

// The shim writes g<generation>-r<rank>-<pid>.ring (shim/src/shim/rank/rank.cc); everything else is no ring of ours.
bool Rings::parse(const std::string& name, RingFile* file) const {
  int generation = 0;
  int end = 0;
  file->name = name;
  if (sscanf(name.c_str(), "g%9d-r%9d-%9d.ring%n", &generation, &file->rank, &file->pid, &end) != 3) return false;
  const std::string written =
      "g" + std::to_string(generation) + "-r" + std::to_string(file->rank) + "-" + std::to_string(file->pid) + ".ring";
  const bool ours = file->rank == -1 || (file->rank >= first_rank_ && file->rank - first_rank_ < count_);
  return written == name && generation == generation_ && file->pid > 0 && ours;
}

void Rings::choose(const std::vector<std::string>& files, const std::vector<Process>& processes,
                   const std::vector<pid_t>& started) {
  const Family family(processes, started);
  std::set<std::string> before;
  for (const RingFile& known : own_) before.insert(known.name);
  std::map<int, std::vector<RingFile>> by_rank;
  for (const std::string& name : files) {
    RingFile file;
    if (parse(name, &file)) by_rank[file.rank].push_back(file);
  }
  own_.clear();
  superseded_.clear();
  for (auto& [rank, rings] : by_rank) {
    std::set<pid_t> writers;
    for (const RingFile& ring : rings) {
      if (family.lives(ring.pid)) writers.insert(ring.pid);
    }
    // The living that descend from what we started; then what was chosen before; then whoever is left.
    const auto key = [&](const RingFile& ring) {
      const int distance = family.lives(ring.pid) ? family.distance(ring.pid) : kFar;
      const int standing = distance != kFar ? 0 : before.count(ring.name) != 0 ? 1 : 2;
      return std::make_tuple(standing, distance, family.started_at(ring.pid), ring.pid);
    };
    std::sort(rings.begin(), rings.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
    size_t kept = 0;
    for (const RingFile& ring : rings) {
      // Without a number the ranks cannot be told apart: each is its own, but for helpers of another.
      const bool counts =
          family.lives(ring.pid) ? !family.is_below_any(ring.pid, writers) : before.count(ring.name) != 0;
      if (kept == 0 || (rank == -1 && counts && kept < static_cast<size_t>(count_))) {
        own_.push_back(ring);
        ++kept;
      } else if (!family.lives(ring.pid)) {
        superseded_.push_back(ring.name);
      }
    }
  }
}

}  // namespace falcon
