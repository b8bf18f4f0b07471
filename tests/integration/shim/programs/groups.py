"""Forty groups, each of which is destroyed before the next one is made; rank 1's heap differs from its peer's.

The address of a group that is gone comes back as the next group's on some ranks, and not on others. Every
second group sends once; the others make as many calls as there are groups so far.
"""

import gc
import random

import torch
import torch.distributed as dist

GROUPS = 40
dist.init_process_group("gloo")
rank = dist.get_rank()
drawn = random.Random(rank)
value = torch.zeros(8)
kept = []
dist.barrier()
for turn in range(GROUPS):
    group = dist.new_group([0, 1], backend="gloo")
    if turn % 2 == 0:
        for _ in range(turn + 1):
            dist.all_reduce(value, group=group)
    elif rank == 0:
        dist.send(value, 1, group=group)
    else:
        dist.recv(value, 0, group=group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    if rank == 1 and turn % 3 == 0:
        kept.append(bytearray(drawn.randrange(200, 2000)))
    dist.barrier()
