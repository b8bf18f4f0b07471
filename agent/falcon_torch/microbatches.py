"""Micro-batches that Falcon may share out anew: a slow rank computes fewer, the others more (FALCON §5.3).

A step's global batch has M = D · ``per_rank`` micro-batches. Rank i computes m_i of them, whatever m_i is; the
m_i always add up to M, and each rank's are the next m_i after those of the ranks before it: the union is always the
same global batch. DDP averages over the D ranks, so each micro-batch's loss counts with the factor D/M =
1/``per_rank``: 1/D · Σ_ranks Σ_own D/M · g = 1/M · Σ g, the mean over all micro-batches. (FALCON's weight m_i/M for the
mean gradient of a rank is the same sum.) Only the sum's order changes, and with it the last bits.

**One synchronising pass a step.** DDP exchanges gradients in the backward pass of each rank's last micro-batch alone;
the others are inside ``no_sync``. So every rank makes the same collectives in a step, whatever its share is, and a
disagreement could never leave a rank waiting.

**All ranks change at the same step.** Rank 0 reads the wanted shares (a file of the agent's) as its step k begins,
and publishes them in the process group's store, to hold from step k + 2 on. All ranks look into the store at the start
of each step. Each sees them in time: a rank that begins step k + 1 has completed step k's exchange of gradients; that
needs rank 0's part; rank 0 gave it after it had published. So at the start of step k + 1 at the latest every rank knows
the shares that hold from step k + 2 on. The next shares are published only when these hold, so that none is overlooked.
This rests on collectives that are over when the step is: with NCCL the host may run ahead by several steps. So a model
on a GPU keeps the even split.

Each rank says what it computes and how long a micro-batch takes it (``said``): that is what Falcon plans with, and how
a rank that computes less than others can still be told from one that is fast. Of several objects the newest one speaks.

Without Falcon, and wherever shares cannot be moved, the same script computes the even split.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from typing import Any, ContextManager, Iterator, List, NamedTuple, Tuple

import torch
import torch.distributed as dist

from falcon_torch.agent_file import AgentFile, run_dir
from falcon_torch.ranks import place, store
from falcon_torch.said import Said

LEAST = 1  # micro-batches of a rank: each takes part in the exchange of gradients
MOST_RANKS = 1024
_AHEAD = 2  # steps between publishing and change
_log = logging.getLogger("falcon_torch")


class MicroBatch(NamedTuple):
    """A micro-batch of this rank. Run forward and backward inside ``with micro.pass_:``."""

    number: int  # in the global batch: 0 … M − 1
    scale: float  # the factor of its mean loss
    pass_: ContextManager[Any]  # exchanges gradients at its end if it is the rank's last


class MicroBatches:
    """The micro-batches of each step. All ranks make it at the same place of their program, and step alike.

    Args:
        model: what the passes go through, wrapped in DistributedDataParallel.
        per_rank: micro-batches of a rank in the even split.
    """

    _made = 0

    def __init__(self, model: torch.nn.Module, per_rank: int) -> None:
        """Begin with the even split. Raises ValueError for fewer than one micro-batch a rank."""
        if per_rank < 1:
            raise ValueError(f"per_rank={per_rank}: each rank computes at least one micro-batch")
        here = place()
        self._model, self._per_rank, self._place = model, per_rank, here
        self._shares = [per_rank] * here.world_size
        self._pending: Tuple[int, List[int]] | None = None  # the step from which these shares hold
        self._steps = 0
        self._number = 0  # of the newest shares that were published
        self._wanted = AgentFile.of_this_pod("microbatches")
        self.hindrance = hindrance(model, per_rank, here.world_size)  # why shares cannot be moved; "" if they can
        if self.hindrance and self._wanted is not None and here.rank == 0:
            _log.warning("micro-batches stay evenly split: %s", self.hindrance)
        self._store = (
            None if self.hindrance or self._wanted is None else store(f"falcon-microbatches-{MicroBatches._made}")
        )
        MicroBatches._made += 1
        self._made_as = MicroBatches._made
        self._said: Said | None = None
        if run_dir() and here.local_rank is not None:
            path = os.path.join(run_dir(), "launch", f"microbatches.{here.local_rank}")
            self._said = Said(path, here.generation, per_rank, self.hindrance)

    @property
    def total(self) -> int:
        """Return the number of micro-batches of a step, of all ranks."""
        return self._per_rank * self._place.world_size

    @property
    def shares(self) -> Tuple[int, ...]:
        """Return how many each rank computes in the present step."""
        return tuple(self._shares)

    def step(self) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of the next step, one optimizer step's worth."""
        self._agree()
        self._steps += 1
        first, own = sum(self._shares[: self._place.rank]), self._shares[self._place.rank]
        began_ns = time.monotonic_ns()
        for number in range(own):
            last = number == own - 1
            if last and self._tells is not None:
                self._tells.step(time.monotonic_ns() - began_ns, own - 1)
            quiet = getattr(self._model, "no_sync", contextlib.nullcontext)
            yield MicroBatch(first + number, 1 / self._per_rank, contextlib.nullcontext() if last else quiet())

    @property
    def _tells(self) -> Said | None:
        """Return the file in which this rank says what it does; None where another has been made since."""
        return self._said if self._made_as == MicroBatches._made else None

    # -- what all ranks agree on -------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Look at the start of a step for new shares, and change to those that hold from this step on."""
        if self._store is None or self._wanted is None:
            return
        if self._place.rank == 0 and self._pending is None:
            self._publish(usable(self._wanted.content(), self._place.generation, self._place.world_size, self.total))
        if self._pending is None:
            since = self._store.add(f"from-{self._number + 1}", 0)
            if since:
                self._number += 1
                self._pending = (since, json.loads(self._store.get(f"shares-{self._number}")))
        if self._pending is not None and self._pending[0] <= self._steps:
            self._change(self._pending[1])

    def _publish(self, wanted: List[int] | None) -> None:
        """Publish the shares that rank 0 has found wanted, where they are others than those in force."""
        if self._store is not None and wanted is not None and wanted != self._shares:
            self._store.set(f"shares-{self._number + 1}", json.dumps(wanted))
            self._store.add(f"from-{self._number + 1}", self._steps + _AHEAD)

    def _change(self, shares: List[int]) -> None:
        self._shares, self._pending = shares, None
        if self._tells is not None:
            self._tells.turn(shares[self._place.rank], all(share == self._per_rank for share in shares))


class Dealer:
    """Deals the samples of a data set to micro-batches: the same for a step's micro-batch, whichever rank computes it.

    Each epoch is a permutation of its own, drawn from the seed and the epoch's number; the samples at its end that fill
    no whole step are left out. There is no state: a run that is resumed at a step gets what it would have got.

    Args:
        samples: in the data set.
        batch_size: samples of a micro-batch.
        total: micro-batches of a step, of all ranks (``MicroBatches.total``).
        seed: the same on all ranks.
    """

    def __init__(self, samples: int, batch_size: int, total: int, seed: int = 0) -> None:
        """Raise ValueError where the data set does not fill a step."""
        self._steps = samples // (batch_size * total)
        if batch_size < 1 or self._steps < 1:
            raise ValueError(f"{samples} samples do not fill a step of {total} micro-batches of {batch_size}")
        self._samples, self._size, self._total, self._seed = samples, batch_size, total, seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.long)

    def samples(self, step: int, index: int) -> List[int]:
        """Return the samples of micro-batch ``index`` of a step, counted from 0."""
        epoch, within = divmod(step, self._steps)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self._seed << 32) + epoch)
            self._epoch, self._order = epoch, torch.randperm(self._samples, generator=generator)
        first = (within * self._total + index) * self._size
        found: List[int] = self._order[first : first + self._size].tolist()
        return found


def hindrance(model: torch.nn.Module, per_rank: int, ranks: int) -> str:
    """Return why the model's micro-batches cannot be shared out anew; "" if they can be."""
    if ranks < 2 or not (dist.is_available() and dist.is_initialized()):
        return "there is one rank only"
    if ranks > MOST_RANKS:
        return f"there are more than {MOST_RANKS} ranks"
    if per_rank <= LEAST:
        return "each rank has one micro-batch in a step, and keeps one"
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return "the model is not in DistributedDataParallel: others make collectives in each pass"
    if dist.get_world_size(model.process_group) != ranks:
        return "the model's process group does not hold all ranks"
    if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
        return "SyncBatchNorm makes collectives in each pass"
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return "the model is on a GPU, where the host may run ahead of the others' steps"
    return ""


def usable(wanted: Any, generation: int, ranks: int, total: int) -> List[int] | None:
    """Return the shares that a file wants; None where it is of another generation or job, or no such file at all."""
    shares = wanted.get("shares") if isinstance(wanted, dict) else None
    if not isinstance(shares, list) or wanted.get("generation") != generation or len(shares) != ranks:
        return None
    if not all(type(share) is int and LEAST <= share <= total for share in shares) or sum(shares) != total:
        return None
    return shares
