"""Share out micro-batches again: a slow rank computes fewer, the others more (FALCON §5.3).

Micro-batches move between the replicas of the model. Without tensor and pipeline parallelism each rank is a replica;
with them, all ranks of a replica have the same share. A step's global batch has M = D · ``per_rank`` micro-batches for
D replicas. Replica i computes m_i of them, whatever m_i is; the m_i always add up to M, and each replica's are the next
m_i after those of the replicas before it: the union is always the same global batch. DDP averages over the D replicas,
so each micro-batch's loss counts with the factor D/M = 1/``per_rank``: 1/D · Σ_replicas Σ_own D/M · g = 1/M · Σ g, the
mean over all micro-batches. (FALCON's weight m_i/M for the mean gradient of a replica is the same sum.) Only the sum's
order changes, and with it the last bits.

**One synchronising pass a step.** DDP exchanges gradients in the backward pass of each rank's last micro-batch alone;
the others are inside ``no_sync``. So every rank makes the same collectives between replicas in a step, whatever its
share is. A script that exchanges gradients by itself does it after its last micro-batch. Sharded parameters (FSDP) are
gathered once a step, where the script asks for it (``sharded``).

**All ranks change at the same step.** Each rank looks once at the start of a step. Rank 0 proposes the shares that
Falcon wants (a file of the agent's), and all ranks agree on the step from which they hold (``agreement``). This rests
on nothing that a step exchanges, so it holds where the host runs ahead of its device, too.

Each rank reports its share and the time of one micro-batch (``microbatch_report``). Falcon plans with these figures,
and distinguishes by them a rank that computes less than others from one that is fast. On a device, and where a replica
has several ranks, a pass contains waiting; then Falcon takes the rank's computation in the iteration. Of several
objects the newest one reports.

Without Falcon, and wherever shares cannot be moved, the same script computes the even split.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from typing import Any, ContextManager, Dict, Iterator, List, NamedTuple, Tuple

import torch
import torch.distributed as dist

from falcon_torch.agent_file import AgentFile, run_dir
from falcon_torch.agreement import Agreement
from falcon_torch.microbatch_report import ReportWriter
from falcon_torch.ranks import place, store
from falcon_torch.store import sharded

LEAST = 1  # micro-batches of a rank: each takes part in the exchange of gradients
MOST_RANKS = 1024
_log = logging.getLogger("falcon_torch")


class MicroBatch(NamedTuple):
    """A micro-batch of this rank. Run forward and backward inside ``with micro.pass_:``."""

    number: int  # in the global batch: 0 … M − 1
    scale: float  # the factor of its mean loss
    pass_: ContextManager[Any]  # exchanges gradients at its end if it is the rank's last


class MicroBatches:
    """The micro-batches of each step. All ranks make it at the same place of their program, and step alike.

    Args:
        model: what the passes go through, wrapped in DistributedDataParallel over the replicas. With ``replicas`` also
            a module whose gradients the script exchanges by itself, once after its last micro-batch.
        per_rank: micro-batches of a rank in the even split.
        replica: number of the model's replica that this rank belongs to; without it each rank is a replica.
        replicas: how many there are.
        gather_once: of a model with sharded parameters (``fully_shard``), keep them gathered from a step's first
            micro-batch to its last, and the gradients whole: that takes the memory of both. Without it such a model's
            micro-batches keep the even split.
    """

    _made = 0

    def __init__(
        self,
        model: torch.nn.Module,
        per_rank: int,
        *,
        replica: int | None = None,
        replicas: int | None = None,
        gather_once: bool = False,
    ) -> None:
        """Begin with the even split.

        Raises ValueError for fewer than one micro-batch a rank, or a replica that cannot be.
        """
        here = place()
        if per_rank < 1:
            raise ValueError(f"per_rank={per_rank}: each rank computes at least one micro-batch")
        if (replica is None) != (replicas is None):
            raise ValueError("give both replica and replicas, or neither")
        if replica is None or replicas is None:
            replica, replicas = here.rank, here.world_size
        if not 0 <= replica < replicas or here.world_size % replicas:
            raise ValueError(f"replica={replica} of replicas={replicas}, in a job of {here.world_size} ranks")
        self._model, self._per_rank, self._place = model, per_rank, here
        self._replica, self._replicas = replica, replicas
        self._shares = [per_rank] * replicas
        self._of_ranks: List[int] | None = None  # the ranks' replicas, once rank 0 knows them
        self._wanted = AgentFile.of_this_pod("microbatches")
        self._kept = sharded.kept_gathered(model) if gather_once else []
        # Why shares stay; "" if they can move.
        self.hindrance = hindrance(model, per_rank, here.world_size, replicas, gather_once=gather_once)
        if self.hindrance and self._wanted is not None and here.rank == 0:
            _log.warning("micro-batches stay evenly split: %s", self.hindrance)
        self._store = (
            None if self.hindrance or self._wanted is None else store(f"falcon-microbatches-{MicroBatches._made}")
        )
        # Without a store or Falcon's file the shares stay even, and nothing is exchanged.
        self._agreement = None if self._store is None else Agreement(self._store, here.rank, here.world_size)
        if self._store is not None:
            # Rank 0 turns shares of replicas into shares of ranks, so it has to know each rank's replica.
            self._store.set(f"replica-{here.rank}", str(replica))
            self._store.add("replicas", 1)
        # Ranks make their objects in the same order, so the count is a name for the store that all of them know.
        MicroBatches._made += 1
        self._made_as = MicroBatches._made
        self._report: ReportWriter | None = None
        if run_dir() and here.local_rank is not None:
            path = os.path.join(run_dir(), "launch", f"microbatches.{here.local_rank}")
            alone = replicas == here.world_size
            timed = _can_be_timed(model, alone=alone)
            self._report = ReportWriter(path, here.generation, per_rank, self.hindrance, timed=timed, same_calls=alone)

    @property
    def total(self) -> int:
        """Return the number of micro-batches of a step, of all replicas."""
        return self._per_rank * self._replicas

    @property
    def shares(self) -> Tuple[int, ...]:
        """Return how many each replica computes in the present step."""
        return tuple(self._shares)

    def step(self) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of the next step, one optimizer step's worth."""
        self._agree()
        first, own = sum(self._shares[: self._replica]), self._shares[self._replica]
        began_ns = time.monotonic_ns()
        for number in range(own):
            last = number == own - 1
            # The last pass contains the exchange of gradients, which is no computation.
            if last and self._reporting is not None:
                self._reporting.step(time.monotonic_ns() - began_ns, own - 1)
            yield MicroBatch(first + number, 1 / self._per_rank, self._pass(last=last))

    def _pass(self, *, last: bool) -> ContextManager[Any]:
        if self._kept:
            return sharded.pass_(self._kept, last=last)
        quiet = getattr(self._model, "no_sync", contextlib.nullcontext)
        return contextlib.nullcontext() if last else quiet()

    @property
    def _reporting(self) -> ReportWriter | None:
        """Return the file in which this rank reports its shares; None where another has been made since."""
        return self._report if self._made_as == MicroBatches._made else None

    # -- what all ranks agree on -------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Look at the start of a step for new shares, and change to those that hold from this step on."""
        if self._store is None or self._agreement is None:
            return
        # One rank proposes, since all must change at the same step, and agents of several pods hear of an order at
        # different times.
        wanted = self._new() if self._place.rank == 0 and not self._agreement.is_open else None
        if wanted is not None:
            self._store.set(f"shares-{self._agreement.number + 1}", json.dumps(wanted))
        if self._agreement.look(propose=wanted is not None):
            self._change(json.loads(self._store.get(f"shares-{self._agreement.number}")))

    def _new(self) -> List[int] | None:
        """Return the replicas' shares that Falcon wants, where they are others than those in force."""
        content = self._wanted.content() if self._wanted is not None else None
        by_rank = usable(content, self._place.generation, self._place.world_size, self._per_rank)
        # Waiting for a rank that is late would hold all steps up; the file is there in the next step as well.
        if by_rank is None or not self._knows_replicas():
            return None
        shares = of_replicas(by_rank, self._of_ranks or [], self._replicas)
        return shares if shares != self._shares else None

    def _knows_replicas(self) -> bool:
        """Read once which replicas the ranks belong to; never wait for a rank that has not stated its own."""
        if self._of_ranks is None and self._store is not None:
            ranks = self._place.world_size
            if self._store.add("replicas", 0) == ranks:
                self._of_ranks = [int(self._store.get(f"replica-{rank}")) for rank in range(ranks)]
        return self._of_ranks is not None

    def _change(self, shares: List[int]) -> None:
        self._shares = shares
        if self._reporting is not None:
            self._reporting.turn(shares[self._replica], all(share == self._per_rank for share in shares))


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
        self._order = torch.empty(0, dtype=torch.long, device="cpu")

    def samples(self, step: int, index: int) -> List[int]:
        """Return the samples of micro-batch ``index`` of a step, counted from 0."""
        epoch, within = divmod(step, self._steps)
        # A permutation is as long as the data set: it is drawn once an epoch, not once a micro-batch.
        if epoch != self._epoch:
            generator = torch.Generator("cpu").manual_seed((self._seed << 32) + epoch)
            self._epoch, self._order = epoch, torch.randperm(self._samples, generator=generator, device="cpu")
        first = (within * self._total + index) * self._size
        found: List[int] = self._order[first : first + self._size].tolist()
        return found


def _can_be_timed(model: torch.nn.Module, *, alone: bool) -> bool:
    """Check whether a pass contains a rank's own computation only; ``alone``: each rank is a replica."""
    return alone and not sharded.is_sharded(model) and all(each.device.type == "cpu" for each in model.parameters())


def hindrance(model: torch.nn.Module, per_rank: int, ranks: int, replicas: int, *, gather_once: bool = False) -> str:
    """Return why the model's micro-batches cannot be shared out again; "" if they can be."""
    if ranks < 2 or not (dist.is_available() and dist.is_initialized()):
        return "there is one rank only"
    if ranks > MOST_RANKS:
        return f"there are more than {MOST_RANKS} ranks"
    if replicas < 2:
        return "the model has one replica only"
    if per_rank <= LEAST:
        return "each rank has one micro-batch in a step, and keeps one"
    # Each kind of parallelism makes collectives in other places, and all ranks must make the same number of them.
    if sharded.is_sharded(model):
        if reason := sharded.hindrance(model, ranks, gather_once=gather_once):
            return reason
    elif isinstance(model, torch.nn.parallel.DistributedDataParallel):
        if dist.get_world_size(model.process_group) != replicas:
            return "the model's process group does not hold all replicas"
    elif replicas == ranks:
        return "the model is not in DistributedDataParallel: others make collectives in each pass"
    if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
        return "SyncBatchNorm makes collectives in each pass"
    return ""


def usable(wanted: Any, generation: int, ranks: int, per_rank: int) -> List[int] | None:
    """Return the ranks' shares that a file wants; None where it is of another generation or job, or no such file."""
    shares = wanted.get("shares") if isinstance(wanted, dict) else None
    if not isinstance(shares, list) or wanted.get("generation") != generation or len(shares) != ranks:
        return None
    total = per_rank * ranks
    # JSON's true is an int for isinstance, and a sum that is not the total would change the gradients' mean.
    if not all(type(share) is int and LEAST <= share <= total for share in shares) or sum(shares) != total:
        return None
    return shares


def of_replicas(shares: List[int], replica_of: List[int], replicas: int) -> List[int] | None:
    """Return the replicas' shares for the ranks'; None where the ranks of a replica would have different shares."""
    found: Dict[int, int] = {}
    for replica, share in zip(replica_of, shares):
        if found.setdefault(replica, share) != share:
            return None
    return [found[replica] for replica in range(replicas)] if len(found) == replicas else None
