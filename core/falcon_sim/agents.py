"""Simulate the agents of a job: they feed every rank's records to core's own RankChain, and report its results.

A rank's chain gives the same result whenever its records are read, so an agent that reads a ring later finds the same
calls. At scale this saves time. Only the ``sentinels`` are read all the time, because all ranks of a synchronous job
have the same iteration time. The rings of the others hold the newest iterations. They are read when a sentinel shows a
change: first one ring of each tensor-parallel group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.signals.rank.chain import RankChain
from falcon_core.signals.rank.profiling import Profile
from falcon_core.wire.reporting.messages import Detection, Onset, RankSignals
from falcon_core.wire.reporting.microbatches import MAX_TURNS, MicrobatchReport, MicroShare, Turn
from falcon_core.wire.ring import RecordArray
from falcon_sim.job.model import Block, JobModel
from falcon_sim.job.records import TENSOR, RingWriter
from falcon_sim.job.scenario import Watch
from falcon_sim.job.traffic import Traffic

HISTORY_ITERATIONS = 24  # iterations that an unread ring still holds; enough for a period and the newest times
replace = msgspec.structs.replace
Nanoseconds = npt.NDArray[np.int64]


class _Reader:
    def __init__(self, writer: RingWriter, detection: Detection) -> None:
        self.writer = writer
        self.chain = RankChain(detection)
        self.profile = Profile()
        self.iterations_before = 0  # of this generation: counted by an earlier chain, or made unrecorded
        self.knows_cycle = False  # the rank knows how many calls an iteration has now

    @property
    def settled(self) -> bool:
        """Check whether the chain's period is the iteration: the first passes of 1F1B repeat, too, and may mislead."""
        return not self.knows_cycle or self.chain.period_calls == self.writer.calls_in_iteration


class Agents:
    """Chains of one generation."""

    def __init__(self, model: JobModel, watch: Watch) -> None:
        self._model = model
        self._traffic = Traffic(model)
        self._detection = Detection(
            verify_percent=watch.verify_percent, consecutive_iterations=watch.consecutive_iterations
        )
        self._sample_every = watch.sample_every
        self._profiles = watch.profiles
        self._history_iterations = HISTORY_ITERATIONS  # so many samples, where only samples show anything
        if model.job.calls == "Enqueued":
            self._history_iterations *= watch.sample_every
        world = model.job.parallelism.world
        count = watch.sentinels or world
        # Sentinels are spread evenly, so that every stage and replica has some.
        self.sentinels = sorted({int(rank) for rank in np.linspace(0, world - 1, count).round()})
        self._readers: dict[int, _Reader] = {}
        self._history: deque[tuple[Block, Nanoseconds, int, int]] = deque()
        self._counts = model.even
        self.held_iterations = 0  # that unread rings still hold
        self.records = 0  # that were written and read
        self.skipped_ns = 0  # time that passed unrecorded

    @property
    def any_speaks(self) -> bool:
        """Check whether a rank reports a slowdown, or that its newest iteration computed longer than usual."""
        chains = [reader.chain for reader in self._readers.values()]
        return any(chain.may_matter(chain.last_end_ns or 0) for chain in chains)

    def start(self) -> None:
        """Begin a generation with new rings."""
        self._counts = self._model.even
        self._history.clear()
        self.held_iterations = 0
        self._readers = {rank: self._reader(rank) for rank in self.sentinels}

    def feed(self, block: Block, begins_ns: Nanoseconds, first: int, last: int) -> bool:
        """Read iterations of a block that have been made; True if a slowdown began or ended."""
        self._history.append((block, begins_ns, first, last))
        self.held_iterations += last - first
        while self.held_iterations - (self._history[0][3] - self._history[0][2]) >= self._history_iterations:
            _, _, begin, end = self._history.popleft()
            self.held_iterations -= end - begin
        changed = False
        for reader in self._readers.values():
            changed = self._read(reader, block, begins_ns, first, last) or changed
        return changed

    def _reader(self, rank: int) -> _Reader:
        reader = _Reader(RingWriter(self._model, rank, self._sample_every), self._detection)
        if self._model.shareable:
            per_rank = self._model.job.microbatches
            turn = Turn(0, self._share(rank), even=self._counts == self._model.even)
            reader.chain.shares.said = MicrobatchReport(generation=1, per_rank=per_rank, turns=[turn], timed=False)
        return reader

    def _read(self, reader: _Reader, block: Block, begins_ns: Nanoseconds, first: int, last: int) -> bool:
        records = reader.writer.records(block, begins_ns - self.skipped_ns, first, last)
        self.records += len(records)
        changed = reader.chain.feed(records)
        if self._profiles:
            chain, width = reader.chain, self._detection.consecutive_iterations
            is_on = reader.profile.is_on(chain.slowdown, chain.iterations, width)
            reader.writer.sample_every = 1 if is_on else self._sample_every
        return changed

    def read_all(self) -> None:
        """Read every ring, from the oldest iteration that it holds."""
        self._read_those(range(self._model.job.parallelism.world))

    def read_suspects(self, named: Collection[int] = ()) -> None:
        """Read the suspects' rings.

        They are one ring of each tensor-parallel group, and all rings of the two groups that wait longest for a rank of
        their own. In a tensor-parallel group the slow rank makes the others wait in every pass; the excess of these
        waits tells which group it is. The rings of a group that is no longer suspected are closed, unless a rank of the
        group computes slowly or is ``named`` as a culprit, whose relief has to be seen.
        """
        tensor = self._model.shape[2]
        self._read_those(range(0, self._model.job.parallelism.world, tensor))
        if tensor == 1:
            return
        suspected = self._longest_waiting(tensor)
        suspected |= {rank - rank % tensor for rank in named}
        for first in sorted(suspected):
            self._read_those(range(first, first + tensor))
        read = {rank - rank % tensor for rank in self._readers if rank % tensor and rank not in self.sentinels}
        for first in read - suspected:
            if self._alike(range(first, first + tensor)):
                self._let_go(range(first + 1, first + tensor))

    def _longest_waiting(self, tensor: int) -> set[int]:
        """Return the first ranks of the two tensor-parallel groups that wait longest for a rank of their own."""
        waits = []
        for rank, reader in self._readers.items():
            track = reader.chain.track() if rank % tensor == 0 else None
            if track is not None:
                waits.append((sum(track.excess_ns.get(TENSOR, ())), rank))
        return {first for _, first in sorted(waits, reverse=True)[:2]}

    def _let_go(self, ranks: range) -> None:
        """Close these ranks' rings, except the sentinels' rings."""
        for rank in ranks:
            if rank not in self.sentinels:
                self._readers.pop(rank, None)

    def _alike(self, group: range) -> bool:
        """Check whether all ranks of a tensor-parallel group that were read are known to compute alike.

        The ranks of such a group do the same work.
        """
        tracks = [reader.chain.track() for rank in group if (reader := self._readers.get(rank)) is not None]
        times = [track.compute_ns for track in tracks if track is not None and track.compute_ns is not None]
        least = 1 + self._detection.verify_percent / 200  # half of what counts as slow
        return len(times) == len(tracks) and max(times) <= least * min(times)

    def _read_those(self, ranks: range) -> None:
        for rank in ranks:
            if rank not in self._readers:
                reader = self._readers[rank] = self._reader(rank)
                for piece in self._history:
                    self._read(reader, *piece)

    def read_sentinels(self) -> None:
        """Close all rings except the sentinels' rings."""
        if len(self._readers) > len(self.sentinels):
            self._readers = {rank: self._readers[rank] for rank in self.sentinels}

    def jump(self, iterations: int, seconds: float) -> None:
        """Pass over healthy iterations that are not simulated: they are counted, and leave no records.

        A count without them would say that the generation has hardly trained, and so that a restart costs little.
        """
        self.skipped_ns += round(seconds * 1e9)
        for reader in self._readers.values():
            reader.iterations_before += iterations

    def share_anew(self, counts: tuple[int, ...]) -> None:
        """Make the scripts report new micro-batch shares: a rank's calls change with its share."""
        self._counts = counts
        self._history.clear()
        self.held_iterations = 0
        for rank, reader in self._readers.items():
            chain = reader.chain
            said = chain.shares.said
            assert said is not None  # the job is shareable
            turn = Turn((chain.last_end_ns or 0) + 1, self._share(rank), even=counts == self._model.even)
            chain.shares.said = replace(said, turns=[*said.turns, turn][-MAX_TURNS:])
            reader.knows_cycle = True

    def _signals(self, rank: int) -> RankSignals:
        reader = self._readers[rank]
        return reader.chain.signals(rank, self.skipped_ns - reader.writer.offset_ns)

    def _onset(self, reader: _Reader, signals: RankSignals) -> Onset | None:
        """Return the onset that a rank reports, its iterations counted from the generation's first."""
        onset = signals.onset
        if onset is None or not reader.iterations_before:
            return onset
        return replace(
            onset,
            iteration=onset.iteration + reader.iterations_before,
            reported_iteration=onset.reported_iteration + reader.iterations_before,
        )

    def _replica(self, rank: int) -> int:
        _, replicas, tensor = self._model.shape
        return rank // tensor % replicas

    def fresh(self, rank: int) -> bool:
        """Check whether the rank's report holds its own iterations."""
        reader = self._readers.get(rank)
        return reader is not None and reader.settled

    def sent(self, rank: int) -> RankSignals:
        """Return the rank's own report."""
        reader, per_rank, share = self._readers.get(rank), self._model.job.microbatches, self._share(rank)
        # A ring that is not read, or has just been opened, reports nothing of its iterations.
        if reader is None or not reader.settled:
            before = reader.iterations_before if reader is not None else 0
            micro = MicroShare(per_rank=per_rank, share=share, timed=False) if self._model.shareable else None
            return RankSignals(rank=rank, tracking="NoRing", iterations=before, micro=micro)
        signals = self._signals(rank)
        onset = self._onset(reader, signals)
        return RankSignals(
            rank=rank,
            tracking=signals.tracking,
            iterations=signals.iterations + reader.iterations_before,
            iteration_ns=signals.iteration_ns,
            compute_ns=signals.compute_ns,
            wait_ns=signals.wait_ns,
            healthy_iteration_ns=signals.healthy_iteration_ns,
            healthy_noise=signals.healthy_noise,
            healthy_compute_ns=signals.healthy_compute_ns,
            healthy_compute_error=signals.healthy_compute_error,
            slow_compute_ns=signals.slow_compute_ns,
            slow_compute_error=signals.slow_compute_error,
            onset=onset,
            work=signals.work,
            comms=self._traffic.comms(rank, {} if onset is None else reader.chain.lasting_excess()),
            sends=self._traffic.sends(rank, share),
            micro=signals.micro,
        )

    def _share(self, rank: int) -> int:
        return self._counts[self._replica(rank)]

    def profile(self, iterations: int) -> tuple[dict[int, RecordArray], int]:
        """Read in profile mode all records of the newest iterations of every rank, and count those iterations."""
        pieces: list[tuple[Block, Nanoseconds, int, int]] = []
        left = iterations
        for block, begins, first, last in reversed(self._history):
            if left <= 0:
                break
            pieces.insert(0, (block, begins, max(first, last - left), last))
            left -= last - first
        records = {}
        for rank in range(self._model.job.parallelism.world):
            writer = RingWriter(self._model, rank)
            records[rank] = np.concatenate([writer.records(*piece) for piece in pieces])
            self.records += len(records[rank])
        return records, sum(last - first for _, _, first, last in pieces)
