"""The agents of a simulated job: every rank's records go through core's own RankChain, and nothing else is reported.

A rank's chain is pure and incremental, so an agent that reads a ring later finds the same calls in it. At scale this
saves time: only the ``sentinels`` are read all the time (all ranks of a synchronous job have the same iteration time),
and others' rings, which hold the newest iterations, when something is up: first one of each tensor-parallel group.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.signals.rank import RankChain, RankMemory
from falcon_core.wire.messages import Detection
from falcon_core.wire.ring import RecordArray
from falcon_sim.model import Block, JobModel
from falcon_sim.records import TENSOR, RingWriter
from falcon_sim.scenario import Watch

HISTORY_ITERATIONS = 24  # that an unread ring still holds; enough for a period and the newest times
replace = msgspec.structs.replace
Nanoseconds = npt.NDArray[np.int64]


class _Reader:
    def __init__(self, model: JobModel, rank: int, detection: Detection, memory: RankMemory | None = None) -> None:
        self.writer = RingWriter(model, rank)
        self.chain = RankChain(detection, memory)
        self.iterations_before = 0  # counted by an earlier chain of this generation


class Agents:
    """Chains of one generation."""

    def __init__(self, model: JobModel, watch: Watch) -> None:
        self._model = model
        self._detection = Detection(
            verify_percent=watch.verify_percent, consecutive_iterations=watch.consecutive_iterations
        )
        world = model.job.parallelism.world
        count = watch.sentinels or world
        self.sentinels = sorted({int(one) for one in np.linspace(0, world - 1, count).round()})
        self._readers: dict[int, _Reader] = {}
        self._history: deque[tuple[Block, Nanoseconds, int, int]] = deque()
        self._held = 0
        self.records = 0  # that were written and read
        self.skipped_ns = 0  # time that passed unrecorded

    @property
    def any_onset(self) -> bool:
        """Whether a rank reports a slowdown."""
        return any(reader.chain.slowdown is not None for reader in self._readers.values())

    def start(self) -> None:
        """A new generation: new rings."""
        self._history.clear()
        self._held = 0
        self._readers = {rank: _Reader(self._model, rank, self._detection) for rank in self.sentinels}

    def feed(self, block: Block, begins_ns: Nanoseconds, first: int, last: int) -> bool:
        """Iterations of a block have been made; True if a slowdown began or ended."""
        self._history.append((block, begins_ns, first, last))
        self._held += last - first
        while self._held - (self._history[0][3] - self._history[0][2]) >= HISTORY_ITERATIONS:
            _, _, begin, end = self._history.popleft()
            self._held -= end - begin
        changed = False
        for reader in self._readers.values():
            changed = self._read(reader, block, begins_ns, first, last) or changed
        return changed

    def _read(self, reader: _Reader, block: Block, begins_ns: Nanoseconds, first: int, last: int) -> bool:
        records = reader.writer.records(block, begins_ns - self.skipped_ns, first, last)
        self.records += len(records)
        return reader.chain.feed(records)

    def read_all(self) -> None:
        """Read every ring, from the oldest iteration that it holds."""
        self._read_those(range(self._model.job.parallelism.world))

    def read_suspects(self) -> None:
        """One ring of each tensor-parallel group, and all of the two groups that wait longest for one of their own.

        In a tensor-parallel group the slow rank makes the others wait in every pass; its excess tells which group.
        """
        tensor = self._model.shape[2]
        self._read_those(range(0, self._model.job.parallelism.world, tensor))
        if tensor == 1:
            return
        waits = []
        for rank, reader in self._readers.items():
            track = reader.chain.track() if rank % tensor == 0 else None
            if track is not None:
                waits.append((sum(track.excess_ns.get(TENSOR, ())), rank))
        for _, first in sorted(waits, reverse=True)[:2]:
            self._read_those(range(first, first + tensor))

    def _read_those(self, ranks: range) -> None:
        for rank in ranks:
            if rank not in self._readers:
                reader = self._readers[rank] = _Reader(self._model, rank, self._detection)
                for piece in self._history:
                    self._read(reader, *piece)

    def read_sentinels(self) -> None:
        """Back to the sentinels alone."""
        if len(self._readers) > len(self.sentinels):
            self._readers = {rank: self._readers[rank] for rank in self.sentinels}

    def share_anew(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Micro-batches are shared otherwise, and every agent was told: what was healthy is scaled, not forgotten."""
        self._history.clear()
        self._held = 0
        for rank, reader in list(self._readers.items()):
            replica = self._replica(rank)
            memory = reader.chain.memory()
            healthy = memory.healthy_compute_ns
            if healthy is not None:
                healthy = round(healthy * after[replica] / before[replica])
            slowdown = memory.slowdown
            if slowdown is not None:  # the new chain counts from 1
                slowdown = replace(slowdown, first_iteration=1, reported_iteration=1)
            memory = replace(memory, anchor=None, healthy_compute_ns=healthy, slowdown=slowdown)
            fresh = _Reader(self._model, rank, self._detection, memory)
            fresh.iterations_before = self._iterations(reader)
            self._readers[rank] = fresh

    def _iterations(self, reader: _Reader) -> int:
        return reader.iterations_before + reader.chain.signals(reader.writer.rank, 0).iterations

    def _replica(self, rank: int) -> int:
        _, replicas, tensor = self._model.shape
        return rank // tensor % replicas

    def seen(self, rank: int, counts: tuple[int, ...]) -> dict[str, Any]:
        """RankSeen's fields from the rank's own report; compute times as for an even share of the micro-batches."""
        reader = self._readers.get(rank)
        if reader is None:
            return {}
        signals = reader.chain.signals(rank, self.skipped_ns - reader.writer.offset_ns)
        even = self._model.job.microbatches / counts[self._replica(rank)]
        onset = signals.onset
        if onset is not None and reader.iterations_before:
            onset = replace(
                onset,
                iteration=onset.iteration + reader.iterations_before,
                reported_iteration=onset.reported_iteration + reader.iterations_before,
            )
        healthy = signals.healthy_compute_ns
        return {
            "tracked": signals.tracking == "Tracking",
            "iterations": signals.iterations + reader.iterations_before,
            "iteration_ns": signals.iteration_ns,
            "compute_ns": signals.compute_ns if even == 1 else [int(one * even) for one in signals.compute_ns],
            "wait_ns": signals.wait_ns,
            "healthy_iteration_ns": signals.healthy_iteration_ns,
            "healthy_compute_ns": healthy if even == 1 or healthy is None else int(healthy * even),
            "onset": onset,
            "fresh": True,
        }

    def profile(self, iterations: int) -> tuple[dict[int, RecordArray], int]:
        """Profile mode: all records of the newest iterations of every rank, and how many iterations those are."""
        pieces: list[tuple[Block, Nanoseconds, int, int]] = []
        left = iterations
        for block, begins, first, last in reversed(self._history):
            if left <= 0:
                break
            pieces.insert(0, (block, begins, max(first, last - left), last))
            left -= last - first
        told = {}
        for rank in range(self._model.job.parallelism.world):
            writer = RingWriter(self._model, rank)
            told[rank] = np.concatenate([writer.records(*piece) for piece in pieces])
            self.records += len(told[rank])
        return told, sum(last - first for _, _, first, last in pieces)
