"""Jobs that several tests of the simulator run."""

from __future__ import annotations

TWO_STAGES = {
    "parallelism": {"data": 8, "pipeline": 2},
    "procs_per_node": 4,
    "microbatches": 8,
    "forward_seconds": 0.05,
    "backward_seconds": 0.1,
    "transfer_seconds": 0.001,
    "reduce_seconds": 0.3,
    "noise": 0.01,
}
