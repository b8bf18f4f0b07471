"""A local coordinator of consistent pauses: one process reads all ranks' rings and writes their control file.

The decisions are :mod:`tests.unit.shim.pause_rules`'s; here are the files and the clock.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.shim.jobs import PYTHON, SHIM
from falcon_agent.pause.gates import Gates
from falcon_agent.rings.ring_reader import RingReader
from falcon_core.recovery.probe.cut import Channel, Known
from falcon_core.signals.calls.iteration_counts import iteration_counts
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire import ring
from falcon_core.wire.launcher.control import Mode, Target, pack_control
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import CounterArray, RecordArray, Traffic
from tests.integration.ports import free_port
from tests.unit.shim import pause_rules as pause
from tests.unit.shim.pause_rules import Cut, Phase, RankView

PROGRAM = Path(__file__).parents[2] / "gpu" / "programs" / "paused.py"
LOOK_SECONDS = 0.0005
KEPT_RECORDS = 16_384  # of a ring: more than two iterations
WORLD = "world"


class Layout(msgspec.Struct, frozen=True):
    """A job's communicators as its program makes them."""

    groups: dict[str, tuple[int, ...]]  # in the order of their creation, the world first
    pairs: tuple[tuple[int, int], ...] = ()  # (sender, receiver) in the world
    blocking: bool = True  # calls return when they are done; NCCL's return when they are enqueued

    @staticmethod
    def of(kind: str, size: int) -> Layout:
        """Return the layout of the program's job."""
        groups: dict[str, tuple[int, ...]] = {WORLD: tuple(range(size))}
        if kind == "groups":
            neighbours = [tuple(sorted((i, (i + 1) % size))) for i in range(size)] if size > 2 else []
            groups |= {f"pair{i}": pair for i, pair in enumerate(neighbours)}
            groups["even"] = tuple(range(0, size, 2))
        if kind == "pipeline":
            steps = [(i, i + 1) for i in range(size - 1)]
            return Layout(groups, tuple(steps + [(b, a) for a, b in steps]))
        if kind == "anyone":
            return Layout(groups, tuple((sender, 0) for sender in range(1, size)))
        return Layout(groups)

    def local_ids(self, rank: int) -> dict[str, int]:
        """Return how the shim of a rank numbers its communicators: by first appearance."""
        own = [name for name, ranks in self.groups.items() if rank in ranks]
        return {name: number for number, name in enumerate(own, start=1)}

    def members(self) -> dict[Channel, tuple[int, ...]]:
        return pause.channels(self.groups, {WORLD: self.pairs} if self.pairs else {})


class _Ring:
    """One rank's counters, and what its calls tell of its iterations."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._reader = RingReader(path)
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.rank, self.pid = self._reader.header.rank, self._reader.header.pid
        self._ids = layout.local_ids(self.rank)
        self._blocking = layout.blocking
        self.keys = {
            channel: self._key(self._ids[channel.communicator], channel)
            for channel, ranks in layout.members().items()
            if self.rank in ranks
        }
        self._chain = RankChain(Detection())
        self._newest: RecordArray = np.empty(0, dtype=ring.RECORD_DTYPE)

    def listen(self) -> None:
        """Read what was called since the last time."""
        batch = self._reader.read(time.monotonic())
        if len(batch.records):
            self._chain.feed(batch.records, lost=batch.lost > 0)
            self._newest = np.concatenate([self._newest, batch.records])[-KEPT_RECORDS:]

    @property
    def at_start(self) -> bool:
        return self._chain.at_start

    def known(self) -> Known | None:
        """Return what the rank knows of its iterations; None where it is in no regular iteration."""
        whole = self._chain.newest_whole
        if whole is None:
            return None
        found = iteration_counts(self._newest[np.isin(self._newest["seq"], whole.calls.numbers + 1)], self._counters())
        channels = {key: channel for channel, key in self.keys.items()}
        if found is None or not found.calls.keys() <= channels.keys():
            return None
        return Known(
            {channels[key]: calls for key, calls in found.starts.items()},
            {channels[key]: calls for key, calls in found.calls.items()},
        )

    def _counters(self) -> CounterArray:
        """Return the counters as they stood at one moment: counters only grow, and two looks in a row saw the same."""
        before = self._reader.counters()
        while True:
            after = self._reader.counters()
            assert before is not None
            assert after is not None
            if before.tobytes() == after.tobytes():
                return after
            before = after

    def _key(self, comm: int, channel: Channel) -> int:
        if channel.source < 0:
            return ring.counter_key(comm, Traffic.COLLECTIVE)
        if channel.source == self.rank:
            return ring.counter_key(comm, Traffic.SEND, channel.destination)
        return ring.counter_key(comm, Traffic.RECV, channel.source)

    def view(self, gate: int, table_epoch: int) -> RankView:
        # Status first: whoever waited then has counted all that it has counted since.
        status = ring.parse_status(os.pread(self._file, ring.STATUS_BYTES, 0))
        raw = os.pread(self._file, status.counters * ring.COUNTER_BYTES, status.counters_offset)
        counters = np.frombuffer(raw, dtype=ring.COUNTER_DTYPE)
        used = counters[counters["key"] != 0]
        entered = dict(zip(used["key"].tolist(), used["entered"].tolist(), strict=True))
        traffic = used["key"] >> np.uint64(32) & np.uint64(0xFF)
        in_progress = used["entered"] - used["finished"]
        from_anyone = (traffic == Traffic.RECV_ANY) & (in_progress > 0)
        numbers = (used["key"][from_anyone] >> np.uint64(40)).tolist()
        outstanding = dict(zip(numbers, in_progress[from_anyone].tolist(), strict=True))
        return RankView(
            entered={channel: entered.get(key, 0) for channel, key in self.keys.items()},
            in_flight=int(in_progress[traffic == Traffic.COLLECTIVE].sum()) if self._blocking else 0,
            waiting=status.waiting > 0 and status.gate_waited == gate and status.table_seen == table_epoch,
            opened=status.gate_opened == gate,
            receives_any={name: outstanding[number] for name, number in self._ids.items() if number in outstanding},
        )

    def close(self) -> None:
        self._reader.close()
        os.close(self._file)


class Outcome(msgspec.Struct, frozen=True):
    """One pause."""

    closed: bool
    seconds_to_cut: float  # to the deadline where it was not closed
    moved: int  # calls that were begun while the gates were closed
    reason: str
    preferred: bool  # an iteration's start was asked for
    cut: Cut
    fallback: str  # why it is not an iteration's start
    moves: int  # of that start


class Coordinator:
    """Pauses one running job; its rings lie in ``folder`` beside the control file."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._layout = layout
        self._members = layout.members()
        self._gates = Gates(folder / "control")
        self._rings = [_Ring(path, layout) for path in sorted(folder.glob("*.ring"))]

    def pause(self, deadline_seconds: float, hold_seconds: float = 0.0, prefer: bool = True) -> Outcome:
        """Close the gates, hold them, open them; ``prefer``: at an iteration's start, if that can be."""
        began = time.monotonic()
        self.listen()
        known = {rank_ring.rank: rank_ring.known() for rank_ring in self._rings} if prefer else None
        now = time.monotonic_ns()
        state = pause.begin(self._members, self._views(), now + int(deadline_seconds * 1e9), now, known)
        self._write(state)
        while state.phase is Phase.CLOSING:
            time.sleep(LOOK_SECONDS)
            self._gates.beat(time.monotonic_ns())
            after = pause.step(state, self._views(), time.monotonic_ns())
            if after.targets != state.targets:
                self._write(after)
            state = after
        seconds = time.monotonic() - began
        closed = state.phase is Phase.CLOSED
        before = self.begun()
        if closed and hold_seconds:
            time.sleep(hold_seconds)
        moved = self.begun() - before if closed else 0
        if closed:
            self.listen()
            state = pause.confirmed(state, {rank_ring.rank: rank_ring.at_start for rank_ring in self._rings})
        self._gates.open()
        return Outcome(closed, seconds, moved, state.reason, prefer, state.cut, state.fallback, state.moves)

    def listen(self) -> None:
        """Read the rings, as an agent does now and then."""
        for rank_ring in self._rings:
            rank_ring.listen()

    def arm_forever(self, deadline_seconds: float) -> None:
        """Begin a pause and never come back to it, as an agent does that dies."""
        state = pause.begin(self._members, self._views(), time.monotonic_ns() + int(deadline_seconds * 1e9))
        self._write(state)

    def close(self) -> None:
        for rank_ring in self._rings:
            rank_ring.close()
        self._gates.close()

    def _views(self) -> dict[int, RankView]:
        return {rank_ring.rank: rank_ring.view(self._gates.number, self._gates.table) for rank_ring in self._rings}

    def begun(self) -> int:
        """Return the calls begun by all ranks, ever."""
        return sum(sum(view.entered.values()) for view in self._views().values())

    def _write(self, state: pause.Pause) -> None:
        targets = [
            Target(pid=rank_ring.pid, key=rank_ring.keys[channel], calls=calls)
            for rank_ring in self._rings
            for channel, calls in pause.targets_of(state, rank_ring.rank).items()
        ]
        self._gates.aim(targets, state.deadline_ns, time.monotonic_ns())


class Job:
    """Ranks of PROGRAM on this machine; ``more`` goes into their environment, without it they are on Gloo."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        size: int,
        iterations: int,
        compute_seconds: float = 0.0,
        more: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "control").write_bytes(pack_control(Mode.TRACK, 1))
        self.folder, self.size, self._more = folder, size, more or {}
        self.layout = msgspec.structs.replace(Layout.of(kind, size), blocking=more is None)
        port = free_port()
        self.reference: list[str] = []
        self.ranks = [self._start(rank, port, [kind, str(iterations), str(compute_seconds)]) for rank in range(size)]

    def _start(self, rank: int, port: int, arguments: list[str]) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "LD_PRELOAD": str(SHIM),
            "FALCON_RING_DIR": str(self.folder),
            "FALCON_CONTROL": str(self.folder / "control"),
            **self._more,
        }
        return subprocess.Popen(
            [str(PYTHON), str(PROGRAM), *arguments], env=environment, stdout=subprocess.PIPE, text=True
        )

    def running(self) -> bool:
        return all(rank.poll() is None for rank in self.ranks)

    def wait_for_first_run(self) -> None:
        """Wait until every rank has trained once, undisturbed: its digest is the reference."""
        self.reference = [_line(rank) for rank in self.ranks]

    def finish(self, timeout_seconds: float = 120) -> bool:
        """Return whether the second run gave the same losses, bit for bit; raises if a rank failed or did not end."""
        try:
            outputs = [rank.communicate(timeout=timeout_seconds)[0].strip() for rank in self.ranks]
        finally:
            self.kill()
        if any(rank.returncode != 0 for rank in self.ranks):
            raise RuntimeError(f"exit codes {[rank.returncode for rank in self.ranks]}")
        return outputs == self.reference

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def pause_at_random(
    job: Job, seed: int, at_most: int, deadline_seconds: float = 3.0, gap_seconds: float = 0.004
) -> list[Outcome]:
    """Pause with random gaps and holds until the job ends, or ``at_most`` times; every other pause only equalises."""
    chance = random.Random(seed)
    coordinator = Coordinator(job.folder, job.layout)
    coordinator.listen()  # to the undisturbed run
    outcomes: list[Outcome] = []
    while job.running() and len(outcomes) < at_most:
        hold = chance.choice([0.0, 0.0, 0.002])
        outcomes.append(coordinator.pause(deadline_seconds, hold, prefer=len(outcomes) % 2 == 0))
        time.sleep(chance.uniform(0.0, gap_seconds))
        coordinator.listen()
    coordinator.close()
    return outcomes


def _line(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline().strip()
