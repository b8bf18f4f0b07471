"""All-reduces captured into CUDA graphs: ``graphs.py MODE COUNT``, each graph launched three times. Needs a GPU.

MODE: ``global``, ``thread_local`` or ``relaxed``. Between two captures some calls go to the device as usual, so that
the shim's helper has events to ask for while a capture is open.
"""

from __future__ import annotations

import sys

import job
import torch
import torch.distributed as dist

LAUNCHES = 3


def main(mode: str, count: int) -> None:
    job.begin()
    value = torch.ones(1024)
    for _ in range(4):
        dist.all_reduce(value)
    for _ in range(count):
        value.fill_(1)
        for _ in range(8):
            dist.all_reduce(value)
            value.div_(dist.get_world_size())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            dist.all_reduce(value)
            value.div_(dist.get_world_size())
        for _ in range(LAUNCHES):
            graph.replay()
        torch.cuda.synchronize()
        if not bool((value == 1).all()):
            raise SystemExit("a graph computed something else")
    del graph  # a communicator cannot be destroyed while graphs hold its calls: NCCL waits for them
    dist.barrier()
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
