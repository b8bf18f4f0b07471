"""A mixture of experts: each layer sends every token to its expert and back, in parts that change with every batch.

Then the gradients of what all ranks share are summed. argv: ITERATIONS FILE (job.py).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import job
import torch
import torch.distributed as dist

LAYERS = 4
TOKENS = 64  # of a rank


def exchange() -> Callable[[], None]:
    rank, size = dist.get_rank(), dist.get_world_size()
    experts = [torch.nn.Linear(job.WIDTH, job.WIDTH) for _ in range(LAYERS)]
    shared = torch.zeros(job.WIDTH)
    iterations = itertools.count()

    def there_and_back(expert: torch.nn.Module, tokens: torch.Tensor, chance: random.Random) -> torch.Tensor:
        # All ranks draw the same numbers: what each rank sends to each.
        parts = [_parts(chance, size) for _ in range(size)]
        sent, received = parts[rank], [part[rank] for part in parts]
        at_experts = torch.empty(sum(received), job.WIDTH)
        dist.all_to_all_single(at_experts, tokens, received, sent)
        back = torch.empty_like(tokens)
        dist.all_to_all_single(back, expert(at_experts), sent, received)
        return back

    def step() -> None:
        chance = random.Random(next(iterations))
        tokens = torch.ones(TOKENS, job.WIDTH)
        with torch.no_grad():
            for expert in experts:
                tokens = torch.tanh(there_and_back(expert, tokens, chance))
        dist.all_reduce(shared)

    return step


def _parts(chance: random.Random, size: int) -> list[int]:
    cuts = sorted(chance.randrange(1, TOKENS) for _ in range(size - 1))
    return [end - begin for begin, end in itertools.pairwise([0, *cuts, TOKENS])]


job.train(exchange)
