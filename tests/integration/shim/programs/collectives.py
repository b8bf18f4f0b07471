"""Every collective of torch.distributed over Gloo, once, in a known order; then one in a smaller group."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
dist.barrier()
dist.all_reduce(torch.ones(1000))
dist.broadcast(torch.ones(500, dtype=torch.float64), src=1)
dist.reduce(torch.ones(300), dst=1)
dist.all_gather([torch.empty(100) for _ in range(size)], torch.ones(100))
dist.gather(torch.ones(50), [torch.empty(50) for _ in range(size)] if rank == 0 else None, dst=0)
dist.scatter(torch.empty(20), [torch.ones(20) for _ in range(size)] if rank == 0 else None, src=0)
dist.all_to_all_single(torch.empty(8 * size), torch.ones(8 * size))
pair = dist.new_group([0, 1])
if rank < 2:
    dist.all_reduce(torch.ones(10), group=pair)
os._exit(0)  # without an end of the groups, which would give their counters back
