// Names the places in the durable folder where Falcon keeps what is under way. It touches no files.
#pragma once

#include <string>

#include "tree/tree.h"

namespace falcon {

class SharedFolder {
 public:
  SharedFolder(int generation, int replica) : generation_(generation), replica_(replica) {}

  static std::string own() { return kOwnFolder; }
  static std::string trash() { return own() + "/trash"; }
  static std::string of_generation(int generation) { return own() + "/g" + std::to_string(generation); }

  // What each replica has had parts in; kept for ever.
  static std::string history(int replica) { return own() + "/history.r" + std::to_string(replica); }

  std::string base() const { return of_generation(generation_); }
  std::string statement(int replica) const { return base() + "/r" + std::to_string(replica); }
  std::string stages() const { return base() + "/stage"; }     // a folder for each unit, one in it for each replica
  std::string claims() const { return base() + "/claimed"; }   // agreed, and about to be published
  std::string rolling() const { return base() + "/rolling"; }  // the same, of generations before
  std::string part() const { return base() + "/part.r" + std::to_string(replica_); }
  std::string suffix() const { return "+r" + std::to_string(replica_); }

  int generation() const { return generation_; }
  int replica() const { return replica_; }

 private:
  int generation_;
  int replica_;
};

}  // namespace falcon
