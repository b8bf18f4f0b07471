"""Follow the rings of the pod's ranks, feed each rank's chain, and collect what the summary reports of them.

The launcher says which rings are the ranks' own (``wire.launcher.launch``). What a training process writes into them is
not to be trusted: a ring that cannot be read is logged once and left, and the others are followed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from falcon_agent.rings.blind_spots import sight
from falcon_agent.rings.communicators import CommTable, Count, Shape, collective_counts, pairs
from falcon_agent.rings.library_errors import Troubles
from falcon_agent.rings.ring_reader import RingReader
from falcon_agent.rings.verification import Results
from falcon_agent.telemetry.microbatches import MicrobatchReportFile
from falcon_agent.telemetry.rates import Pressure
from falcon_core.signals.rank.chain import RankChain
from falcon_core.signals.rank.profiling import SAMPLE_EVERY, Profile
from falcon_core.signals.rank.saved_state import RankMemory
from falcon_core.wire.launcher.launch import MICROBATCH_REPORT, RINGS_DIR, LaunchCounters
from falcon_core.wire.network import NetworkSignals
from falcon_core.wire.reporting.messages import Detection, PairSignals, RankSignals, ThrottleSignals
from falcon_core.wire.reporting.verification import RankResults
from falcon_core.wire.ring import DeviceTimes, Kind, RingFormatError, RingHeader

MOST_RINGS = 64  # ranks of a pod that are followed
_MOST_REFUSED, _MOST_REMEMBERED = 16, 1024  # rings that are logged as refused, and that are not opened again
_NAME = re.compile(r"g\d{1,9}-r(-1|\d{1,9})-\d{1,9}\.ring")
MOST_ATTRIBUTED = 4  # iterations a second of a rank whose waits are taken for series: each costs 20 µs
SILENT_NS = 1_000_000_000  # without a call for as long, a rank's detail says how far it has come in its communicators
SETTLED_ITERATIONS = 5  # until then a program may still import what its first steps need
_SENSELESS = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)  # what records that are noise may raise
T = TypeVar("T")
_log = structlog.get_logger()


class Life(msgspec.Struct, frozen=True):
    """The newest process of a rank."""

    ring: str  # file name
    number: int  # from 1, of the rank's processes in its generation that agents of this pod have followed


class Memory(msgspec.Struct, frozen=True):
    """The knowledge that outlives an agent, by ring file; a ring's file name gives its generation, rank and process."""

    ranks: dict[str, RankMemory] = {}
    comms: dict[str, list[Shape]] = {}
    lives: dict[int, Life] = {}  # by rank


class _Turn(NamedTuple):
    """The state of a rank whose change is news at once."""

    slow_since: int | None  # iteration
    has_period: bool
    has_iterated: bool
    silent: bool  # for longer than its deadline
    retries: int
    comm_error: int


class Followed(msgspec.Struct):
    """A rank's ring, and what is known by it."""

    reader: RingReader
    chain: RankChain
    comms: CommTable
    troubles: Troubles
    script: MicrobatchReportFile
    results: Results
    life: int  # which process of its rank in its generation, from 1 (``Life``)
    profile: Profile = msgspec.field(default_factory=Profile)
    shown: int = 0  # the newest iteration that ``Tracker.newest`` has returned
    attributed: int = 0  # likewise, among those whose computation is known
    enqueues: bool = False  # calls return before they are done: only device events show durations

    def read(self, now_seconds: float, verify_every: int = 0) -> None:
        """Take what was written since the last read. Raises OSError, or RingFormatError for a damaged ring."""
        batch = self.reader.read(now_seconds)
        # After the ring: a share is noted before anything is computed with it.
        self.chain.shares.said = self.script.look()
        if len(batch.records) or batch.lost:
            self.chain.feed(batch.records, lost=batch.lost > 0)
            self.comms.feed(batch.records)
            self.troubles.feed(batch.records)
            self.results.feed(batch.records, verify_every, self.comms.shape, lost=batch.lost > 0)
            self.enqueues = self.enqueues or bool((batch.records["kind"] == Kind.ENQUEUED).any())


class Tracker:
    """A reader of every ring of the newest generation."""

    def __init__(
        self,
        run_dir: Path,
        memory: bytes = b"",
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        *,
        cpu_only: bool = False,
    ) -> None:
        """Begin with an earlier agent's ``memory``. ``monotonic_ns`` is the clock of the rings' times.

        ``cpu_only``: the pod has no device that may compute.
        """
        self._cpu_only = cpu_only
        self._monotonic_ns = monotonic_ns
        self._run_dir = run_dir
        self._rings_dir = run_dir / RINGS_DIR
        self._tracked: dict[str, Followed] = {}
        self._refused: set[str] = set()
        self._memory = _decode(memory)
        self._generation = 0
        self._pressure = Pressure()
        self._turns: dict[str, _Turn] = {}
        self._lives = dict(self._memory.lives)  # by rank
        self.detection = Detection()
        self.verify_every = 0  # one in so many all-reduces has its result hashed; 0: none

    def poll(self, own: Iterable[str] | None) -> bool:
        """Drain every ring. Return whether anything has changed that is news at once.

        ``own``: the file names of the ranks' own rings; None: the same as before.
        """
        if own is not None:
            self._follow(own)
        now = time.monotonic()
        self._of_each(lambda tracked: tracked.read(now, self.verify_every))
        now_ns = self._monotonic_ns()
        before, self._turns = self._turns, self._of_each(lambda tracked: _turn(tracked, now_ns))
        return self._turns != before

    def device_cycle_calls(self) -> int:
        """Return the calls in a cycle of the ranks whose durations only the device knows; 0 if no cycle is known."""
        periods = [tracked.chain.period_calls or 0 for tracked in self._tracked.values() if tracked.enqueues]
        return max(periods, default=0)

    def sample_every(self, *, probed: bool) -> int:
        """Return N, where the device is to time one cycle of N: all ranks of a pod are sampled alike.

        ``probed``: ranks are to stand still soon, and only device times of all their calls show whether they do.
        """
        width = self.detection.consecutive_iterations
        profiled = [
            tracked.profile.is_on(
                tracked.chain.slowdown,
                tracked.chain.iterations,
                width,
                learns=tracked.chain.learns_compute,
                scatters=tracked.chain.scatters,
            )
            for tracked in self._tracked.values()
            if tracked.enqueues
        ]
        return 1 if probed or any(profiled) else SAMPLE_EVERY

    def feed_counters(self, counters: LaunchCounters | None) -> None:
        """Take over the launcher's newest reading of its counters."""
        if counters is not None:
            chains = [tracked.chain for tracked in self._tracked.values()]
            # What the counters said before the first onset is what healthy means: it must not be learned from later
            # readings.
            onsets = [chain.slowdown.start_ns for chain in chains if chain.slowdown is not None]
            self._pressure.feed(
                counters,
                training=bool(chains) and all(chain.period_calls is not None for chain in chains),
                onset_unix_ns=min(onsets) + time.time_ns() - self._monotonic_ns() if onsets else None,
            )

    def signals(self, generation: int, asked: Collection[int] = (), ended: Collection[int] = ()) -> list[RankSignals]:
        """Return an entry for each ring of the generation, by rank.

        Rings of an older generation stay until the next generation starts, and are left out. ``asked``: ranks whose
        traffic is wanted, slow or not. ``ended``: ranks whose processes have ended; what they have counted is final.
        """
        # Rings have monotonic times, reports have unix times. One offset for all ranks, so that they stay comparable.
        now_ns = self._monotonic_ns()
        offset_ns = time.time_ns() - now_ns

        def report(tracked: Followed) -> RankSignals | None:
            header = tracked.reader.header
            if header.generation != generation:
                return None
            rates = self._pressure.rank(max(0, header.local_rank))
            silent = header.rank in ended or _is_silent(tracked, now_ns)
            return msgspec.structs.replace(
                _with_comms(
                    tracked.chain.signals(header.rank, offset_ns), tracked, asked=header.rank in asked, silent=silent
                ),
                cpu_fraction=rates.cpu,
                run_delay_fraction=rates.run_delay,
                healthy_run_delay_fraction=rates.healthy_run_delay,
                healthy_cpu_fraction=rates.healthy_cpu if self._is_judged_by_cpu(tracked) else None,
                collecting_fraction=rates.collecting,
                healthy_collecting_fraction=rates.healthy_collecting,
                lost_records=tracked.reader.lost_records,
                holes=tracked.reader.holes,
                retries=tracked.troubles.retries,
                comm_error=tracked.troubles.comm_error,
                sight=sight(tracked.reader.status()),
            )

        reports = self._of_each(report).values()
        return sorted((each for each in reports if each is not None), key=lambda each: each.rank)

    def _is_judged_by_cpu(self, tracked: Followed) -> bool:
        """Check whether a rank's CPU time shows whether it computes: it is slow, and no device may compute for it."""
        if not self._cpu_only or tracked.enqueues or tracked.chain.slowdown is None:
            return False
        status = tracked.reader.status()
        return status is None or status.device_times == DeviceTimes.NOT_ASKED

    def trains(self, generation: int, ranks: int) -> bool:
        """Check whether that many ranks of the generation have each done ``SETTLED_ITERATIONS``."""
        tracked = [each for each in self._tracked.values() if each.reader.header.generation == generation]
        return len(tracked) >= ranks > 0 and all(each.chain.iterations >= SETTLED_ITERATIONS for each in tracked)

    def may_matter(self) -> bool:
        """Check whether a report could say more than that all ranks are well; it costs a fraction of ``signals``."""
        now_ns = self._monotonic_ns()
        return any(tracked.chain.may_matter(now_ns) for tracked in self._tracked.values())

    def silent(self) -> dict[int, int]:
        """Return the process ids, by rank, of those that have made no call for longer than their deadline."""
        now_ns = self._monotonic_ns()
        headers = [tracked.reader.header for tracked in self._tracked.values() if tracked.chain.is_silent(now_ns)]
        return {header.rank: header.pid for header in headers if header.generation == self._generation}

    def computing_longer(self) -> dict[int, int]:
        """Return the process ids, by rank, of those whose computation takes longer than it did (``RankChain``)."""
        headers = [tracked.reader.header for tracked in self._tracked.values() if tracked.chain.computes_longer]
        return {header.rank: header.pid for header in headers if header.generation == self._generation}

    def processes(self) -> dict[int, int]:
        """Return the process ids by local rank."""
        headers = [tracked.reader.header for tracked in self._tracked.values()]
        return {header.local_rank: header.pid for header in headers if header.generation == self._generation}

    def iterations(self) -> dict[int, int]:
        """Return the iterations that ranks have done in this generation, by local rank."""
        return {
            each.reader.header.local_rank: each.chain.iterations
            for each in self._tracked.values()
            if each.reader.header.generation == self._generation
        }

    def quiet_since(self, unix_ns: Mapping[int, int]) -> dict[int, int]:
        """Return the process ids, by rank, of those that have made no call since a time, nor for ``SILENT_NS``.

        ``unix_ns``: the times, by local rank.
        """
        now_ns = self._monotonic_ns()
        # Rings have monotonic times; reports have unix times.
        offset_ns = time.time_ns() - now_ns
        found = {}
        for tracked in self._tracked.values():
            header, end_ns = tracked.reader.header, tracked.chain.last_end_ns
            since_ns = unix_ns.get(header.local_rank)
            if since_ns is None or end_ns is None or header.generation != self._generation:
                continue
            if end_ns + offset_ns < since_ns and now_ns - end_ns >= SILENT_NS:
                found[header.rank] = header.pid
        return found

    def followed(self, generation: int) -> dict[int, Followed]:
        """Return the rings of a generation, by rank."""
        found = (tracked for tracked in self._tracked.values() if tracked.reader.header.generation == generation)
        return {each.reader.header.rank: each for each in found}

    def newest(self) -> dict[int, dict[str, list[float]]]:
        """Return the times [s] of iterations that no earlier call has returned, by rank and name."""
        made = self._of_each(_newest)
        headers = {name: tracked.reader.header for name, tracked in self._tracked.items()}
        return {headers[name].rank: times for name, times in made.items() if name in headers}

    def results(self, generation: int) -> list[RankResults]:
        """Return the digests of each rank's all-reduce results, by ascending rank, where results are verified."""
        found = self.followed(generation)
        reports = (found[rank].results.report(found[rank].life) for rank in sorted(found))
        return [each for each in reports if each is not None]

    def throttle(self) -> ThrottleSignals | None:
        """Return how much the container's CPU quota throttles it."""
        return self._pressure.throttle()

    def network(self) -> NetworkSignals | None:
        """Return the pod's network figures while a rank is slow; None while none is."""
        slow = any(tracked.chain.slowdown is not None for tracked in self._tracked.values())
        return self._pressure.network() if slow else None

    def memory(self) -> bytes:
        """Return what the next agent needs to know."""
        return msgspec.json.encode(
            Memory(
                ranks=self._of_each(lambda tracked: tracked.chain.memory()),
                comms=self._of_each(lambda tracked: tracked.comms.shapes),
                lives=self._lives,
            )
        )

    def _of_each(self, make: Callable[[Followed], T]) -> dict[str, T]:
        """Return what ``make`` returns for each ring, by name; a ring for which it fails is refused."""
        made = {}
        for name, tracked in list(self._tracked.items()):
            try:
                made[name] = make(tracked)
            except (OSError, RingFormatError) as error:
                self._refuse(name, str(error))
            except _SENSELESS:  # must not end the agent, which follows other ranks as well
                _log.exception("a ring's records cannot be followed", ring=name)
                self._refuse(name, "its records cannot be followed")
        return made

    def _follow(self, own: Iterable[str]) -> None:
        """Open the rings that are new, and close those that are the ranks' own no more."""
        # A training process can put any number of files with any name into this folder.
        names = sorted(name for name in set(own) if _NAME.fullmatch(name))[:MOST_RINGS]
        for name in self._tracked.keys() - names:
            self._tracked.pop(name).reader.close()
        for name in names:
            if name not in self._tracked and name not in self._refused:
                self._open(name)

    def _refuse(self, name: str, error: str) -> None:
        """Stop following a ring that cannot be read, and log it once."""
        tracked = self._tracked.pop(name, None)
        if tracked is not None:
            tracked.reader.close()
        if len(self._refused) < _MOST_REFUSED:
            _log.error("ring refused", ring=name, error=error)
        if len(self._refused) < _MOST_REMEMBERED:
            self._refused.add(name)

    def _open(self, name: str) -> None:
        try:
            reader = RingReader(self._rings_dir / name, recorded=False)
        except FileNotFoundError:
            return  # gone again
        except (OSError, RingFormatError) as error:
            self._refuse(name, str(error))
            return
        # The launcher names the files. A ring whose header says something else was replaced by a training process.
        if not name.startswith(f"g{reader.header.generation}-r{reader.header.rank}-"):
            reader.close()
            self._refuse(name, f"it is of rank {reader.header.rank} in generation {reader.header.generation}")
            return
        # Rates of an earlier generation belong to processes that have ended.
        if reader.header.generation > self._generation:
            self._generation = reader.header.generation
            self._pressure = Pressure()
        self._tracked[name] = Followed(
            reader,
            RankChain(self.detection, self._memory.ranks.get(name), place=max(0, reader.header.local_rank)),
            CommTable(self._memory.comms.get(name, ())),
            Troubles(),
            MicrobatchReportFile(
                self._run_dir / f"{MICROBATCH_REPORT}{reader.header.local_rank}", reader.header.generation
            ),
            Results(reader.header.rank, reader.header.world_size),
            self._life(name, reader.header),
        )
        _log.info("following a rank", rank=reader.header.rank, generation=reader.header.generation)

    def _life(self, name: str, header: RingHeader) -> int:
        """Return which process of its rank writes a ring, from 1; an agent that restarts goes on with the count."""
        last = self._lives.get(header.rank)
        if last is None or not last.ring.startswith(f"g{header.generation}-"):
            last = Life(name, 1)
        elif last.ring != name:
            last = Life(name, last.number + 1)
        self._lives[header.rank] = last
        return last.number


def _newest(tracked: Followed) -> dict[str, list[float]]:
    recent = tracked.chain.measured_since(tracked.shown)
    attributed = tracked.chain.measured_since(tracked.attributed, sampled=True)
    if recent:
        tracked.shown = recent[-1].iteration.number
    if attributed:
        tracked.attributed = attributed[-1].iteration.number
    last = attributed[-MOST_ATTRIBUTED:]
    return {
        "iteration": [each.iteration_ns / 1e9 for each in recent],
        "computation": [each.compute_ns / 1e9 for each in last if each.compute_ns is not None],
        "wait": [each.wait_ns / 1e9 for each in last if each.wait_ns is not None],
    }


def _turn(tracked: Followed, now_ns: int) -> _Turn:
    chain = tracked.chain
    slowdown = chain.slowdown
    return _Turn(
        None if slowdown is None else slowdown.first_iteration,
        chain.period_calls is not None,
        chain.iterations > 0,
        chain.is_silent(now_ns),
        tracked.troubles.retries,
        tracked.troubles.comm_error,
    )


def _is_silent(tracked: Followed, now_ns: int) -> bool:
    """Check whether the rank has made no call for ``SILENT_NS``."""
    last_end_ns = tracked.chain.last_end_ns
    return last_end_ns is None or now_ns - last_end_ns >= SILENT_NS


def _with_comms(signals: RankSignals, tracked: Followed, *, asked: bool, silent: bool) -> RankSignals:
    """Add what is compared with the other ranks' reports: excess while the rank is slow, counts while it is silent.

    Add the bytes that its calls carry while it is slow, or if it is ``asked`` for.
    """
    chain = tracked.chain
    excess_ns = chain.lasting_excess() if chain.slowdown is not None else {}
    # Counts show where a silent rank stands; while calls go on, they would change with each report.
    counters = tracked.reader.counters() if silent else None
    counts: dict[int, Count] = {}
    told_pairs: list[PairSignals] = []
    more_pairs = 0
    if counters is not None:
        counts = collective_counts(counters, enqueues=tracked.enqueues)
        told_pairs, more_pairs = pairs(counters, enqueues=tracked.enqueues)
    sends = tracked.comms.sends(tracked.chain.traffic_calls) if excess_ns or asked else []
    comms, more = tracked.comms.comms(
        counts=counts,
        excess_ns=excess_ns,
        period_calls=tracked.chain.traffic_calls,
        paired={pair.comm for pair in told_pairs} | {sent.comm for sent in sends},
        asked=asked,
        healthy_ns=chain.healthy_calls() if asked else {},
    )
    left_out = more + more_pairs
    return msgspec.structs.replace(signals, comms=comms, pairs=told_pairs, sends=sends, comms_left_out=left_out)


def _decode(memory: bytes) -> Memory:
    try:
        return msgspec.json.decode(memory, type=Memory) if memory else Memory()
    except msgspec.DecodeError:  # of another version: begin from nothing
        return Memory()
