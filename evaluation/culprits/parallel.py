"""Durations of 3D-parallel jobs that do not exist: tensor, data and pipeline parallelism with one fault or two.

One-forward-one-backward pipelines, vectorised over the ranks of a stage. A forward or backward pass is two chunks of
computation, each with a tensor-parallel all-reduce; activations and gradients travel from stage to stage; an iteration
ends with a reduce-scatter and an all-gather of the data-parallel group. Nobody knows the fault but the generator: out
come calls, as a ring would hold them, and the rank's own attribution takes it from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from falcon_core.signals.attribution.compute_and_wait import (
    WaitBaseline,
    compute_ns,
    excess_over,
    inside_outside,
    measured_comms,
)
from falcon_core.signals.calls.stream import Calls, Flags, Floats, Ints, traits
from falcon_core.signals.iterations.segmenter import Iteration
from falcon_core.signals.job.culprits import RankView, Wait
from falcon_core.wire.ring import RECORD_DTYPE, Kind, Op, RecordArray

MS = 1e6
GPUS_PER_NODE = 8
HEALTHY_CYCLES, SLOW_CYCLES = 10, 5

_CHUNKS = 2
_FORWARD, _OPTIMIZER = 12.0 * MS, 20.0 * MS  # computation of a pass (a backward pass takes twice as long)
_TENSOR, _ACTIVATION, _GRADIENTS = 1.0 * MS, 1.5 * MS, 60.0 * MS  # transfers
_BYTES = {
    Op.ALL_REDUCE: 1 << 24,
    Op.SEND: 1 << 22,
    Op.RECV: 1 << 22,
    Op.REDUCE_SCATTER: 1 << 28,
    Op.ALL_GATHER: 1 << 27,
}
_TP, _DP = 1, 2  # communicator ids; those of pairs follow
_PAIRS = 3

FaultName = Literal[
    "slow GPU", "node contention", "late data", "slow TP link", "slow DP link", "slow PP link", "more work"
]


class Shape(msgspec.Struct, frozen=True):
    """Ranks count through tensor first, then data, then pipeline, as the operator's groups have it."""

    pipeline: int
    data: int
    tensor: int

    @property
    def world(self) -> int:
        return self.pipeline * self.data * self.tensor

    def rank(self, stage: int, replica: int, shard: int) -> int:
        return (stage * self.data + replica) * self.tensor + shard

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return stage, replica and shard."""
        return rank // (self.data * self.tensor), rank // self.tensor % self.data, rank % self.tensor

    def tensor_group(self, rank: int) -> tuple[int, ...]:
        stage, replica, _ = self.place(rank)
        return tuple(self.rank(stage, replica, shard) for shard in range(self.tensor))

    def data_group(self, rank: int) -> tuple[int, ...]:
        stage, _, shard = self.place(rank)
        return tuple(self.rank(stage, replica, shard) for replica in range(self.data))


class Fault(msgspec.Struct, frozen=True):
    """A fault. ``rank``: the slow rank, or one of the slow node or group; a pipeline link leads to the next stage."""

    name: FaultName
    rank: int
    degree: float = 1.5  # compute × this; transfers of links × LINK of it


_LINK = {"slow TP link": 4.0, "slow DP link": 2.5, "slow PP link": 12.0}


class _Stage(msgspec.Struct):
    """The calls of one stage's ranks in one cycle, in order: [calls] of [data, tensor]."""

    comms: list[int] = []
    ops: list[Op] = []
    starts: list[Floats] = []
    ends: list[Floats] = []

    def stacked(self) -> tuple[Ints, Ints, Ints]:
        """Return communicators [calls]; starts and ends [data, tensor, calls]."""
        starts, ends = (np.stack(times, axis=-1).astype(np.int64) for times in (self.starts, self.ends))
        return np.array(self.comms, dtype=np.int64), starts, ends


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


class Simulation:
    """One job; time is ns on one clock, which nobody else compares."""

    def __init__(self, shape: Shape, seed: int, noise: float = 0.03) -> None:
        self.shape = shape
        self._rng = np.random.default_rng(seed)
        self._noise = noise
        self._micro = 2 * shape.pipeline
        self._clock = np.zeros((shape.pipeline, shape.data, shape.tensor))
        self._ops: list[list[Op]] = []  # by stage
        self.cycles: list[list[tuple[Ints, Ints, Ints]]] = []  # by cycle and stage

    def run(self, cycles: int, faults: tuple[Fault, ...] = ()) -> None:
        for _ in range(cycles):
            self._cycle(faults)

    # what a fault does

    def _factors(self, faults: tuple[Fault, ...]) -> Floats:
        """Return the factor on the computation of every rank: [pipeline, data, tensor]."""
        factors = np.ones(self.shape.world)
        for fault in faults:
            match fault.name:
                case "slow GPU":
                    factors[fault.rank] *= fault.degree
                case "node contention":
                    first = fault.rank // GPUS_PER_NODE * GPUS_PER_NODE
                    factors[first : first + GPUS_PER_NODE] *= fault.degree
                case "more work":
                    factors *= fault.degree
        return factors.reshape(self._clock.shape)

    def _link(self, faults: tuple[Fault, ...], name: FaultName, stage: int) -> Floats:
        """Return the factor on the transfers of each rank of a stage: [data, tensor]."""
        factors = np.ones(self._clock.shape[1:])
        for fault in faults:
            at, replica, shard = self.shape.place(fault.rank)
            if fault.name == name and at == stage:
                match name:
                    case "slow TP link":
                        factors[replica, :] *= _LINK[name]
                    case "slow DP link":
                        factors[:, shard] *= _LINK[name]
                    case _:
                        factors[replica, shard] *= _LINK[name]
        return factors

    def _jitter(self, shape: tuple[int, ...]) -> Floats:
        return 1.0 + self._noise * np.abs(self._rng.standard_normal(shape))

    # a cycle

    def _cycle(self, faults: tuple[Fault, ...]) -> None:
        stages = [_Stage() for _ in range(self.shape.pipeline)]
        compute = self._factors(faults)
        for fault in faults:
            if fault.name == "late data":
                self._clock[self.shape.place(fault.rank)] += 200.0 * MS
        self._passes(stages, compute, faults)
        for stage, calls in enumerate(stages):
            slow = self._link(faults, "slow DP link", stage)
            self._meet(calls, stage, Op.REDUCE_SCATTER, _DP, 0, _GRADIENTS * slow)
            self._clock[stage] += _OPTIMIZER * compute[stage] * self._jitter(compute[stage].shape)
            self._meet(calls, stage, Op.ALL_GATHER, _DP, 0, _GRADIENTS / 2 * slow)
        self._ops = [calls.ops for calls in stages]
        self.cycles.append([calls.stacked() for calls in stages])

    def _passes(self, stages: list[_Stage], compute: Floats, faults: tuple[Fault, ...]) -> None:
        """Run all forward and backward passes, each as soon as what it needs has been sent."""
        sent: dict[tuple[str, int, int], Floats] = {}
        plans = [self._plan(stage) for stage in range(self.shape.pipeline)]
        while any(plans):
            for stage, plan in enumerate(plans):
                while plan and self._pass(stages[stage], stage, *plan[0], compute[stage], sent, faults):
                    del plan[0]

    def _plan(self, stage: int) -> list[tuple[str, int]]:
        """Return the order of a stage's forward and backward passes (one forward, one backward)."""
        ahead = min(self._micro, self.shape.pipeline - stage - 1)
        plan = [("forward", micro) for micro in range(ahead)]
        for micro in range(self._micro - ahead):
            plan += [("forward", ahead + micro), ("backward", micro)]
        return plan + [("backward", micro) for micro in range(self._micro - ahead, self._micro)]

    def _pass(
        self,
        calls: _Stage,
        stage: int,
        direction: str,
        micro: int,
        compute: Floats,
        sent: dict[tuple[str, int, int], Floats],
        faults: tuple[Fault, ...],
    ) -> bool:
        """Run one pass of one stage; False while the input of the pass has not been sent."""
        step = 1 if direction == "forward" else -1
        source, target = stage - step, stage + step
        if 0 <= source < self.shape.pipeline:
            arrival = sent.get((direction, source, micro))
            if arrival is None:
                return False
            start = self._clock[stage].copy()
            self._clock[stage] = np.maximum(start, arrival) + 0.02 * MS
            self._note(calls, Op.RECV, self._pair(source, stage), start, self._clock[stage])
        slow = self._link(faults, "slow TP link", stage)
        for _ in range(_CHUNKS):
            work = _FORWARD * (1 if step > 0 else 2) / _CHUNKS
            self._clock[stage] += work * compute * self._jitter(compute.shape)
            self._meet(calls, stage, Op.ALL_REDUCE, _TP, 1, _TENSOR * slow)
        if 0 <= target < self.shape.pipeline:
            link = self._link(faults, "slow PP link", stage) if step > 0 else np.ones(compute.shape)
            start = self._clock[stage].copy()
            self._clock[stage] += _ACTIVATION * link * self._jitter(compute.shape)
            self._note(calls, Op.SEND, self._pair(stage, target), start, self._clock[stage])
            sent[direction, stage, micro] = self._clock[stage].copy()
        return True

    def _pair(self, source: int, target: int) -> int:
        return _PAIRS + source * self.shape.pipeline + target

    def _meet(self, calls: _Stage, stage: int, op: Op, comm: int, axis: int, transfer: Floats) -> None:
        """Run a collective in all groups along an axis of [data, tensor]."""
        start = self._clock[stage].copy()
        last = start.max(axis=axis, keepdims=True)
        end = np.broadcast_to(last + transfer.max(axis=axis, keepdims=True) * self._jitter(last.shape), start.shape)
        self._clock[stage] = end
        self._note(calls, op, comm, start, end.copy())

    def _note(self, calls: _Stage, op: Op, comm: int, start: Floats, end: Floats) -> None:
        calls.ops.append(op)
        calls.comms.append(comm)
        calls.starts.append(start)
        calls.ends.append(end.copy())

    # what the ranks say

    def _calls(self, cycle: int, rank: int) -> tuple[Ints, Ints, Ints]:
        """Return the communicators, starts and ends of a rank's cycle: [calls] each."""
        stage, replica, shard = self.shape.place(rank)
        comms, starts, ends = self.cycles[cycle][stage]
        return comms, starts[replica, shard], ends[replica, shard]

    def iteration(self, cycle: int, rank: int, hidden: frozenset[int] = frozenset()) -> Iteration:
        """Return a cycle without the calls of ``hidden`` communicators. The last cycle has no successor to end it."""
        comms, starts, ends = self._calls(cycle, rank)
        seen: Flags = np.isin(comms, list(hidden), invert=True) if hidden else np.ones(len(comms), dtype=np.bool_)
        first = int(np.argmax(seen))
        end = int(self._calls(cycle + 1, rank)[1][first])
        count = int(seen.sum())
        ops = np.where(comms[seen] <= _DP, Op.ALL_REDUCE, Op.SEND)
        calls = Calls(
            tokens=comms[seen],
            numbers=np.arange(count),
            starts_ns=starts[seen],
            ends_ns=ends[seen],
            measured=np.ones(count, dtype=np.bool_),
            traits=traits(ops, np.ones(count, dtype=np.int64)),
            kinds=comms[seen],
            sizes=np.ones(count, dtype=np.int64),
        )
        return Iteration(cycle + 1, int(starts[first]), end, False, calls)

    def _comm(self, rank: int, comm: int) -> tuple[str, tuple[int, ...], bool]:
        """Return a communicator's job-wide name, its members, and whether it is a pair."""
        stage, replica, shard = self.shape.place(rank)
        if comm == _TP:
            return f"tp{stage}.{replica}", self.shape.tensor_group(rank), False
        if comm == _DP:
            return f"dp{stage}.{shard}", self.shape.data_group(rank), False
        source, target = divmod(comm - _PAIRS, self.shape.pipeline)
        pair = self.shape.rank(source, replica, shard), self.shape.rank(target, replica, shard)
        return f"{pair[0]}>{pair[1]}", pair, True

    def views(self, hidden: frozenset[int] = frozenset()) -> tuple[list[RankView], float]:
        """Return every rank's track after HEALTHY_CYCLES and SLOW_CYCLES, by its own attribution; and the loss, ns."""
        found = [self._view(rank, hidden) for rank in range(self.shape.world)]
        return [view for view, _ in found], float(np.median([loss for _, loss in found]))

    def _view(self, rank: int, hidden: frozenset[int]) -> tuple[RankView, float]:
        """Return a rank's track, and what its iterations lost, ns."""
        healthy = [self.iteration(cycle, rank, hidden) for cycle in range(HEALTHY_CYCLES)]
        slow = [self.iteration(cycle, rank, hidden) for cycle in range(HEALTHY_CYCLES, len(self.cycles) - 1)]
        baseline = WaitBaseline()
        for iteration in healthy:
            baseline.learn(inside_outside(iteration))
        waits, stalls = self._waits(rank, slow, baseline)
        iteration_ns = _median([iteration.duration_ns for iteration in slow])
        view = RankView(
            rank=rank,
            node=f"node-{rank // GPUS_PER_NODE}",
            work=str(self.shape.place(rank)[0]),
            iteration_ns=iteration_ns,
            compute_ns=_median([compute_ns(iteration) or 0 for iteration in slow]),
            healthy_compute_ns=_median([compute_ns(iteration) or 0 for iteration in healthy]),
            stall_share=_median(stalls) if stalls else None,
            waits=tuple(waits),
            unseen=tuple(self._comm(rank, comm)[1] for comm in hidden),
        )
        return view, iteration_ns - _median([iteration.duration_ns for iteration in healthy])

    def _waits(self, rank: int, slow: list[Iteration], baseline: WaitBaseline) -> tuple[list[Wait], list[float]]:
        """Return the rank's excess by communicator, medians over the slow iterations, and their stall shares."""
        tokens = np.arange(_PAIRS + self.shape.pipeline**2)  # a token is its communicator here
        parts_of: dict[int, list[tuple[float, ...]]] = defaultdict(list)
        stalls = []
        for iteration in slow:
            excess = excess_over(inside_outside(iteration), baseline.healthy)
            if excess is None:
                continue
            for comm, parts in excess.by_comm(measured_comms(iteration, tokens)).items():
                parts_of[comm].append(parts)
            if excess.stall_share is not None:
                stalls.append(excess.stall_share)
        waits = []
        for comm, parts in parts_of.items():
            name, members, p2p = self._comm(rank, comm)
            medians = tuple(_median(part) for part in zip(*parts, strict=True))
            waits.append(Wait(comm=name, members=members, excess_ns=sum(medians), parts_ns=medians, p2p=p2p))
        return waits, stalls

    def profile(self) -> tuple[dict[int, RecordArray], dict[tuple[int, int], str], dict[str, tuple[int, ...]]]:
        """Return the records of the slow cycles of all ranks, with names and members of the communicators."""
        records: dict[int, RecordArray] = {}
        names: dict[tuple[int, int], str] = {}
        members: dict[str, tuple[int, ...]] = {}
        for rank in range(self.shape.world):
            parts, numbers = [], dict.fromkeys((_TP, _DP), 0)
            for cycle in range(HEALTHY_CYCLES, len(self.cycles)):
                comms, starts, ends = self._calls(cycle, rank)
                ops = self._ops[self.shape.place(rank)[0]]
                rows = np.zeros(len(ops), dtype=RECORD_DTYPE)
                rows["op"], rows["comm"], rows["t_start_ns"], rows["duration_ns"] = ops, comms, starts, ends - starts
                rows["kind"], rows["bytes"] = Kind.BLOCKING, [_BYTES[op] for op in ops]
                for comm in numbers:
                    own = comms == comm
                    rows["comm_seq"][own] = numbers[comm] + np.arange(int(own.sum()))
                    numbers[comm] += int(own.sum())
                    name, group, _ = self._comm(rank, comm)
                    names[rank, comm], members[name] = name, group
                parts.append(rows)
            records[rank] = np.concatenate(parts)
        return records, names, members
