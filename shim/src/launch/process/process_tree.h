// Reads the processes below the launcher for the decision on signals (signal_routing.h), and sends what it decides.
#pragma once

#include <set>
#include <vector>

#include "process/signal_routing.h"

namespace falcon {

// `own`: Falcon's own processes, which are left out with everything below them.
ProcessTree read_tree_of(pid_t launcher, std::vector<RankRoot> ranks, const std::set<pid_t>& own);

// Waits, for a moment at most, until the processes that end first have ended; then the others get their signals.
void send(const std::vector<Delivery>& deliveries);

}  // namespace falcon
