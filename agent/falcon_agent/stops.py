"""Where the iterations of a pod's ranks begin, as counts of calls, and whether they stand at a cut: by their rings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from falcon_agent.ring_reader import RingReader
from falcon_agent.tracker import Followed
from falcon_core.signals.iteration_counts import IterationCounts, iteration_counts
from falcon_core.wire.probe import MOST_CHANNELS, ChannelStart, RankStart
from falcon_core.wire.ring import CounterArray, Traffic, parse_counter_key

_LOOKS = 50  # at counters that change, before they count as never at rest
State = Literal["Moving", "Standing", "Passed", "Opened", "Lost"]  # the last: of a ring that is followed no more


class Start(msgspec.Struct, frozen=True):
    """Where a rank's iterations begin. Without ``counts`` it is not known, and ``report`` says why."""

    report: RankStart
    counts: IterationCounts | None = None


def start_of(rank: int, followed: Followed) -> Start:
    """Find where an iteration of a rank began, by what was read of its ring."""
    why, counts = _counts(followed)
    if counts is None:
        return Start(RankStart(rank, why=why))
    channels = []
    for key, calls in counts.calls.items():
        parts = parse_counter_key(key)
        shape = followed.comms.shape(parts.comm)
        size, place = (shape.size, shape.place) if shape is not None else (0, -1)
        start = counts.starts[key]
        channels.append(ChannelStart(parts.comm, size, place, parts.traffic, parts.peer, start, calls))
    return Start(RankStart(rank, channels), counts)


def now_begun(start: Start, followed: Followed) -> Start:
    """Return the same start, with how many iterations were begun since."""
    counters = followed.reader.counters()
    if start.counts is None or counters is None:
        return start
    entered = _entered(counters)
    begun = max(-(-(entered.get(key, 0) - at) // start.counts.calls[key]) for key, at in start.counts.starts.items())
    return msgspec.structs.replace(start, report=msgspec.structs.replace(start.report, begun=max(0, begun)))


def targets_of(counts: IterationCounts, iterations: int) -> dict[int, int]:
    """Return the counts, by counter, at which a rank stands so many iterations after its start."""
    return {key: start + iterations * counts.calls[key] for key, start in counts.starts.items()}


def state_of(reader: RingReader, targets: Mapping[int, int], gate: int, table: int) -> State:
    """Say how far a rank is on its way to a cut.

    ``gate``, ``table``: the numbers of the pause, and of its targets.
    """
    # Status first: whoever waited then has counted all that it has counted since.
    status, counters = reader.status(), reader.counters()
    if status is None or counters is None:
        return "Moving"
    if status.gate_opened == gate:
        return "Opened"
    entered = _entered(counters)
    if any(entered.get(key, 0) > calls for key, calls in targets.items()):
        return "Passed"
    waits = status.waiting > 0 and status.gate_waited == gate and status.table_seen == table
    there = all(entered.get(key, 0) == calls for key, calls in targets.items())
    return "Standing" if waits and there and not _in_flight(counters) else "Moving"


def _counts(followed: Followed) -> tuple[str, IterationCounts | None]:
    """Return the counts, or why there are none."""
    whole, counters = followed.chain.newest_whole, _at_one_moment(followed.reader)
    if followed.enqueues:
        return "its calls return before they are done, and it is not known when its device is", None
    if whole is None:
        return "its calls are not regular now", None
    if counters is None:
        return "its calls are not counted", None
    cycle = followed.comms.records(whole.calls.numbers)
    if len(cycle) < len(whole.calls.numbers):
        return "its iteration has more calls than are kept", None
    counts = iteration_counts(cycle, counters)
    if counts is None:
        return "its newest calls are not those of an iteration", None
    if counts.calls.keys() != counts.starts.keys():
        return "it receives from anyone, in any order", None
    if len(counts.calls) > MOST_CHANNELS:
        return f"it calls in {len(counts.calls)} ways, more than {MOST_CHANNELS}", None
    return "", counts


def _at_one_moment(reader: RingReader) -> CounterArray | None:
    """Return the counters as they stood at one moment: counters only grow, and two looks in a row saw the same."""
    before = reader.counters()
    for _ in range(_LOOKS):
        after = reader.counters()
        if before is None or after is None:
            return None
        if before.tobytes() == after.tobytes():
            return after
        before = after
    return None


def _entered(counters: CounterArray) -> dict[int, int]:
    return dict(zip(counters["key"].tolist(), counters["entered"].tolist(), strict=True))


def _in_flight(counters: CounterArray) -> bool:
    """Check whether a collective has begun and not returned."""
    return any(
        counter["entered"] > counter["finished"]
        for counter in counters
        if parse_counter_key(int(counter["key"])).traffic == Traffic.COLLECTIVE
    )
