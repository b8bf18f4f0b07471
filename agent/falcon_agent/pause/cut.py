"""Find where the iterations of a pod's ranks begin, as counts of calls, and whether the ranks stand at a cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from falcon_agent.rings.ring_reader import RingReader
from falcon_agent.rings.tracker import Followed
from falcon_core.signals.calls.iteration_counts import IterationCounts, iteration_counts
from falcon_core.wire.measurement.probe import MOST_CHANNELS, ChannelStart, RankStart
from falcon_core.wire.ring import CounterArray, Traffic, parse_counter_key

HOST_AHEAD_ITERATIONS = 2  # that a host enqueues before its device has begun them; more are rare
_LOOKS = 50  # at counters that change, before they count as never at rest
# Draining: the rank stands there, its device works on. Lost: its ring is followed no more.
State = Literal["Moving", "Draining", "Standing", "Passed", "Opened", "Lost"]


class Start(msgspec.Struct, frozen=True):
    """Where a rank's iterations begin. Without ``counts`` it is unknown, and ``report`` names the reason."""

    report: RankStart
    counts: IterationCounts | None = None


def start_of(rank: int, followed: Followed) -> Start:
    """Find where an iteration of a rank began, by what was read of its ring."""
    why, counts = _counts(followed)
    if counts is None:
        return Start(RankStart(rank, why=why, on_device=followed.enqueues))
    channels = []
    for key, calls in counts.calls.items():
        parts = parse_counter_key(key)
        shape = followed.comms.shape(parts.comm)
        # Size and place let the operator find which ranks share the channel.
        size, place = (shape.size, shape.place) if shape is not None else (0, -1)
        start = counts.starts[key]
        channels.append(ChannelStart(parts.comm, size, place, parts.traffic, parts.peer, start, calls))
    return Start(RankStart(rank, channels, on_device=followed.enqueues), counts)


def now_begun(start: Start, followed: Followed) -> Start:
    """Return the same start, with how many iterations were begun since."""
    counters = followed.reader.counters()
    if start.counts is None or counters is None:
        return start
    entered = _entered(counters)
    begun = max(-(-(entered.get(key, 0) - at) // start.counts.calls[key]) for key, at in start.counts.starts.items())
    return msgspec.structs.replace(start, report=msgspec.structs.replace(start.report, begun=max(0, begun)))


def targets_of(counts: IterationCounts, iterations: int, calls_before: int = 0) -> dict[int, int]:
    """Return the counts, by counter, at which a rank stands so many iterations after its start.

    ``calls_before``: so many calls before that. A rank with several counters stops at an iteration's start.
    """
    before = calls_before if len(counts.starts) == 1 else 0
    return {key: start + iterations * counts.calls[key] - before for key, start in counts.starts.items()}


def state_of(reader: RingReader, targets: Mapping[int, int], gate: int, table: int, *, enqueues: bool) -> State:
    """Say how far a rank is on its way to a cut.

    Where calls return when they are enqueued, it stands there when its device has done them all, too. The device's
    progress is that of calls that are timed: every call has to be, while a probe is on.

    Args:
        reader: of the rank's ring.
        targets: the calls at the cut, by counter.
        gate: the number of the pause.
        table: the number of its targets.
        enqueues: whether calls return when they are enqueued.
    """
    # Read the status first: a rank that waited then has counted all of its calls when the counters are read.
    status, counters = reader.status(), reader.counters()
    if status is None or counters is None:
        return "Moving"
    if status.gate_opened == gate:
        return "Opened"
    entered = _entered(counters)
    # One call beyond the cut is enough: the rank has left the iteration in which all were to stop.
    if any(entered.get(key, 0) > calls for key, calls in targets.items()):
        return "Passed"
    # The rank waits at this pause's gate and has read its newest targets: older ones may be met by chance.
    waits = status.waiting > 0 and status.gate_waited == gate and status.table_seen == table
    there = all(entered.get(key, 0) == calls for key, calls in targets.items())
    if not (waits and there):
        return "Moving"
    if enqueues:
        done = _finished(counters)
        return "Standing" if all(done.get(key, 0) >= calls for key, calls in targets.items()) else "Draining"
    return "Moving" if _in_flight(counters) else "Standing"


def _counts(followed: Followed) -> tuple[str, IterationCounts | None]:
    """Return the counts, or why there are none."""
    whole, counters = followed.chain.newest_whole, _at_one_moment(followed.reader)
    if whole is None:
        return "its calls are not regular now", None
    if counters is None:
        return "its calls are not counted", None
    # The records of the newest whole iteration say which counter each of its calls advances.
    cycle = followed.comms.records(whole.calls.numbers)
    if len(cycle) < len(whole.calls.numbers):
        return "its iteration has more calls than are kept", None
    counts = iteration_counts(cycle, counters)
    if counts is None:
        return "its newest calls are not those of an iteration", None
    # A receive from any source has no peer, so that no count says where it stands.
    if counts.calls.keys() != counts.starts.keys():
        return "it receives from anyone, in any order", None
    if len(counts.calls) > MOST_CHANNELS:
        return f"it calls in {len(counts.calls)} ways, more than {MOST_CHANNELS}", None
    why = _unknown_progress(counts, counters) if followed.enqueues else ""
    return why, None if why else counts


def _unknown_progress(counts: IterationCounts, counters: CounterArray) -> str:
    """Return why it is unknown how far the device is; "" if that is known but for the newest iterations."""
    done = _finished(counters)
    behind = any(
        done.get(key, 0) < start - HOST_AHEAD_ITERATIONS * counts.calls[key] for key, start in counts.starts.items()
    )
    return "it is not known when its device is done with its calls" if behind else ""


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
    return _by_key(counters, "entered")


def _finished(counters: CounterArray) -> dict[int, int]:
    return _by_key(counters, "finished")


def _by_key(counters: CounterArray, count: str) -> dict[int, int]:
    return dict(zip(counters["key"].tolist(), counters[count].tolist(), strict=True))


def _in_flight(counters: CounterArray) -> bool:
    """Check whether a collective has begun and not returned."""
    return any(
        counter["entered"] > counter["finished"]
        for counter in counters
        if parse_counter_key(int(counter["key"])).traffic == Traffic.COLLECTIVE
    )
