"""Report what the agents of a job would report, without the records of its calls.

Iteration times come from the simulator's model of a job; each rank's noise lasts from an iteration to the next as its
kind says, and the ranks' work differs by nature. An agent's onset is replaced by the rule that it verifies: the median
of the newest C iterations is slower than the healthy time by more than ``verifyPercent``. So what is played is the
decisions, and not the change-point detection (``evaluation/signals`` plays that).
"""

from __future__ import annotations

import math
import statistics
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from evaluation.year.kinds import Kind
from falcon_core.wire.reporting.messages import CommSignals, Onset, RankSignals
from falcon_core.wire.reporting.microbatches import MicroShare
from falcon_sim.cluster.machines import Machines
from falcon_sim.job.model import JobModel
from falcon_sim.job.records import DATA
from falcon_sim.job.traffic import Traffic

KEPT: Final = 16  # iterations of a report, and of a block of the model
SETTLED: Final = 30  # iterations of a generation after which a rank knows its healthy computation
UNSETTLED: Final = 5  # iterations with other shares before a rank knows its cycle
TIMED: Final = 10  # after which it knows the healthy iteration time
Floats = npt.NDArray[np.float64]
replace = msgspec.structs.replace


class Healthy(msgspec.Struct):
    """What the agents of a generation hold for healthy."""

    iteration: float  # s
    noise: float
    compute: Floats | None = None  # [world] s
    waits: Floats | None = None  # [world] s: in the gradients' exchange


class Reports:
    """The agents of a job, over its generations. Times are seconds."""

    def __init__(self, kind: Kind, machines: Machines, seed: int) -> None:
        self.model = JobModel(kind.job, np.random.default_rng([seed, 1]))
        self._kind, self._machines = kind, machines
        self._rng = np.random.default_rng([seed, 2])
        world = kind.job.parallelism.world
        self._nature = np.exp(kind.spread * np.random.default_rng([seed, 3]).standard_normal(world))
        self._drift = kind.noise * self._rng.standard_normal(world)
        self._traffic = Traffic(self.model)
        self.counts = self.model.even
        self.shared = 1.0  # how many times longer all ranks compute at present
        self._ratio, self._ratio_of = 1.0, None  # type: float, tuple[bytes, bytes, tuple[int, ...], float] | None
        self.undisturbed = self._level()
        self.start()

    def start(self) -> None:
        """Begin a generation."""
        self.counts = self.model.even
        self.iterations = 0
        self.healthy: Healthy | None = None
        self.onset: Onset | None = None
        self._unsettled = 0  # iterations that are still made before a rank knows its cycle
        self._times: list[float] = []
        self._sent: dict[int, RankSignals] = {}
        self._forget()

    def _level(self) -> float:
        """Return the undisturbed iteration time."""
        healthy = replace(self.model.healthy(), compute=self._nature)
        return float(self.model.block(4 * KEPT, healthy).seconds.mean())

    def share(self, counts: tuple[int, ...]) -> None:
        """Give the replicas other numbers of micro-batches: its agent has to find the new cycle first."""
        self.counts = counts
        self._unsettled = UNSETTLED
        self._forget()

    def _forget(self) -> None:
        world = self._kind.job.parallelism.world
        self._times = []
        self._compute = np.zeros((0, world))
        self._waits = np.zeros((0, world))
        self._sent = {}

    # -- iterations --------------------------------------------------------------------------------------------------

    def make(self, now: float, seconds: float) -> float:
        """Make iterations for about so long, at least one; returns the time that they took."""
        times, compute, waits = self._block(now)
        level = float(times.mean())
        count = max(1, round(seconds / level))
        kept = min(count, KEPT)
        took = float(times[:kept].sum()) + (count - kept) * level
        first = self.iterations
        self.iterations += count
        # A pause of all ranks falls into one iteration: what is computed around it is no call.
        every = self._kind.pause_every
        for place in range(kept) if every else ():
            if (self.iterations - kept + place + 1) % every == 0:
                times[place] += self._kind.pause_seconds
                compute[place] += self._kind.pause_seconds
        if every:
            took += self._kind.pause_seconds * ((first + count) // every - first // every)
        known = slice(min(kept, self._unsettled), kept)
        self._unsettled -= known.start
        self._times = [*self._times, *times[known].tolist()][-KEPT:]
        self._compute = np.concatenate((self._compute, compute[known]))[-KEPT:]
        self._waits = np.concatenate((self._waits, waits[known]))[-KEPT:]
        self._learn()
        self._judge(now + took)
        self._sent = {}
        return took

    def skip(self, count: int) -> None:
        """Count healthy iterations that are not played."""
        self.iterations += count

    def ratio(self, now: float) -> float:
        """Return the present iteration time over the undisturbed one, without noise."""
        conditions = self._machines.conditions(now, self.counts)
        key = (conditions.compute.tobytes(), conditions.links.tobytes(), self.counts, self.shared)
        if key != self._ratio_of:
            quiet = replace(conditions, compute=conditions.compute * self._nature * self.shared)
            self._ratio, self._ratio_of = float(self.model.block(1, quiet).seconds[0]) / self.undisturbed, key
        return self._ratio

    def _block(self, now: float) -> tuple[Floats, Floats, Floats]:
        """Draw iterations: their times [KEPT], computation and waits [KEPT, world]."""
        kind, model = self._kind, self.model
        conditions = self._machines.conditions(now, self.counts)
        noise = np.empty((KEPT, len(self._drift)))
        fresh = kind.noise * math.sqrt(1 - kind.correlation**2) * self._rng.standard_normal(noise.shape)
        for place in range(KEPT):
            self._drift = kind.correlation * self._drift + fresh[place]
            noise[place] = self._drift
        factor = conditions.compute * self._nature * self.shared * np.exp(noise)
        block = model.block(KEPT, replace(conditions, compute=factor))
        one_pass = (model.forward + model.backward)[None, :, None, None]
        # An agent reports the computation of an even share, whatever share its rank has.
        compute = (block.compute * one_pass * kind.job.microbatches).reshape(KEPT, -1)
        waits = (block.reduced[:, :, None, :] - block.finished[:, :, :, None]).reshape(KEPT, -1)
        return block.seconds.copy(), compute, waits

    def _learn(self) -> None:
        made, width = self.iterations, len(self._times)
        if self.healthy is None and made >= TIMED and width >= TIMED:
            logs = np.log(self._times)
            self.healthy = Healthy(float(np.median(self._times)), float(max(0.003, logs.std())))
        if self.healthy is not None and self.healthy.compute is None and made >= SETTLED and self.onset is None:
            self.healthy.compute = np.median(self._compute, axis=0)
            self.healthy.waits = np.median(self._waits, axis=0)

    def _judge(self, now: float, newest: int = 5, verify: float = 0.1) -> None:
        healthy = self.healthy
        if healthy is None or len(self._times) < newest:
            return
        level = statistics.median(self._times[-newest:])
        if level <= healthy.iteration * (1 + verify):
            self.onset = None
        elif self.onset is None:
            self.onset = Onset(
                iteration=max(1, self.iterations - newest + 1),
                unix_ns=round((now - sum(self._times[-newest:])) * 1e9),
                reported_iteration=self.iterations,
                before_ns=round(healthy.iteration * 1e9),
                after_ns=round(level * 1e9),
            )

    # -- what is sent ------------------------------------------------------------------------------------------------

    def fresh(self, rank: int) -> bool:
        """Check whether the rank's report holds its own iterations."""
        return bool(self._times)

    def sent(self, rank: int) -> RankSignals:
        """Return the rank's report."""
        if not self._sent:
            self._sent = dict(enumerate(self._all()))
        return self._sent[rank]

    def _all(self) -> list[RankSignals]:
        healthy = self.healthy
        times = np.rint(np.array(self._times) * 1e9).astype(np.int64).tolist()
        compute = np.rint(self._compute.T * 1e9).astype(np.int64).tolist()
        known = None if healthy is None or healthy.compute is None else np.rint(healthy.compute * 1e9).astype(int)
        excess = np.zeros_like(self._waits)
        if healthy is not None and healthy.waits is not None:
            excess = np.maximum(0.0, self._waits - healthy.waits)
        waits = np.rint(excess.T * 1e9).astype(np.int64)
        lasting = np.median(waits[:, -5:], axis=1).astype(int).tolist() if times else []
        signals: list[RankSignals] = []
        if not times:
            return [
                RankSignals(rank=rank, tracking="NoRing", iterations=self.iterations, micro=self._micro(rank))
                for rank in range(len(compute))
            ]
        for rank, own in enumerate(compute):
            signals.append(
                RankSignals(
                    rank=rank,
                    tracking="Tracking",
                    iterations=self.iterations,
                    iteration_ns=times,
                    compute_ns=own,
                    wait_ns=waits[rank].tolist() if known is not None else [],
                    healthy_iteration_ns=round(healthy.iteration * 1e9) if healthy is not None else None,
                    healthy_noise=healthy.noise if healthy is not None else None,
                    healthy_compute_ns=int(known[rank]) if known is not None else None,
                    onset=self.onset,
                    comms=self._comms(rank, lasting[rank]) if self.onset is not None else [],
                    sends=self._traffic.sends(rank, self._share(rank)) if self.onset is not None else [],
                    micro=self._micro(rank),
                )
            )
        return signals

    def _comms(self, rank: int, excess_ns: int) -> list[CommSignals]:
        return self._traffic.comms(rank, {DATA: [excess_ns]})

    def _micro(self, rank: int) -> MicroShare | None:
        per_rank = self._kind.job.microbatches
        return MicroShare(per_rank=per_rank, share=self._share(rank), timed=False) if self.model.shareable else None

    def _share(self, rank: int) -> int:
        return self.counts[self._replica(rank)]

    def _replica(self, rank: int) -> int:
        _, replicas, tensor = self.model.shape
        return rank // tensor % replicas
