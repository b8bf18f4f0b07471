"""All-reduces of two tensors at a time, two of which come out wrong at rank 1: corrupted.py LIBRARY.

``LIBRARY`` is the preloaded corrupting_gloo. Gloo's ring hands each part of the result from rank to rank, from higher
to lower: a rank first receives the part of the rank above it, which it passes on, and last the part of the rank below
it, which it does not.
"""

import ctypes
import os
import sys

import torch
import torch.distributed as dist

ITERATIONS = 6
LAST_PART, FIRST_PART = 3, 4  # the iterations in which rank 1's receive of that part is spoilt
ELEMENTS = (6000, 4500)


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.corrupt_result.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t]
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    receives = 2 * (size - 1)  # a part of a small result has two segments
    part = ELEMENTS[0] * 4 // size
    for iteration in range(ITERATIONS):
        torch.manual_seed(100 * iteration + rank)
        tensors = [torch.randn(elements) for elements in ELEMENTS]
        if rank == 1 and iteration == LAST_PART:
            library.corrupt_result(ELEMENTS[0] * 4, receives, part * ((rank - 1) % size))
        if rank == 1 and iteration == FIRST_PART:
            library.corrupt_result(ELEMENTS[0] * 4, 1, part * ((rank + 1) % size))
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
    dist.barrier()
    print(f"rank {rank}: {library.corrupted_results()} results spoilt", flush=True)
    os._exit(0)


main()
