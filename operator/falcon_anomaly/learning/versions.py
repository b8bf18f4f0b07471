"""Make a version of a kind's limits from its older runs, try it on the newer ones, and discard it where it is worse.

The newer runs are the kept set: no version learns from a run before it was tried on it. A version is worse where it
would have raised more alarms in the kept runs, which were healthy, than the version in force. It is worse as well where
it would have missed a confirmed verdict that the version in force had found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from falcon_anomaly.learning.document import MOST_WHY, Confirmed, Discarded, Kind, Run
from falcon_anomaly.learning.limits import EARLY, LATE, Learned, Pair, learnable, limit_for, most
from falcon_core.text import clip

LEARNING_RUNS: Final = 3  # at least, of different jobs
KEPT_RUNS: Final = 2
LEAST_MEASURED: Final = (20, 40)  # times in a run: half an hour of its first hour, and an hour after it


class _Alarm(NamedTuple):
    metric: str
    place: int
    reach: int  # percent of the floor, as the limit
    limit: int


def retrained(kind: Kind, day: int) -> Kind:
    """Return the kind with the version that its runs call for: the present version, or the next."""
    tried = _candidate(kind)
    why = _worse(tried, kind)
    # A limit in force that a healthy run has gone beyond is given up at once, whatever becomes of the new version.
    limits = _without_alarms(kind.limits if why else tried, kind)
    discarded = Discarded(version=kind.version + 1, day=day, why=clip(why, MOST_WHY)) if why else None
    if limits == kind.limits:
        # The day of the same finding is not moved: nothing would change but the text.
        same = discarded is not None and kind.discarded is not None and discarded.why == kind.discarded.why
        return kind if same or not why else msgspec.structs.replace(kind, discarded=discarded)
    return msgspec.structs.replace(
        kind, version=kind.version + 1, learned=day, limits=dict(limits), discarded=discarded
    )


def missing(kind: Kind) -> tuple[int, int]:
    """Return how many more runs are needed before limits are learned: for the first hour, and for what follows it."""
    wanted = LEARNING_RUNS + KEPT_RUNS
    return max(0, wanted - len(_long_enough(kind, EARLY))), max(0, wanted - len(_long_enough(kind, LATE)))


def _candidate(kind: Kind) -> dict[str, Pair]:
    """Return the limits that the older runs teach, or those in force where there are too few runs."""
    early, late = (_of_place(kind, place) for place in (EARLY, LATE))
    names = sorted(early.keys() | late.keys())
    pairs = {name: (early.get(name), late.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair != (None, None)}


def _of_place(kind: Kind, place: int) -> dict[str, int]:
    runs = _long_enough(kind, place)
    if len(runs) < LEARNING_RUNS + KEPT_RUNS:
        in_force = {name: pair[place] for name, pair in kind.limits.items()}
        return {name: limit for name, limit in in_force.items() if limit is not None}
    largest = _largest(runs[:-KEPT_RUNS], place)
    limits = {name: limit_for(reach, name, place) for name, reach in largest.items() if learnable(name)}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _largest(runs: Sequence[Run], place: int) -> dict[str, int]:
    """Return the largest reach of each metric that all of the runs have, in percent of its floor."""
    found: dict[str, int] = {}
    for name in sorted(set.intersection(*(set(run.reach) for run in runs))):
        known = [reach for run in runs if (reach := run.reach[name][place]) is not None]
        if len(known) == len(runs):
            found[name] = max(known)
    return found


def _long_enough(kind: Kind, place: int) -> list[Run]:
    return [run for run in kind.runs if run.measured[place] >= LEAST_MEASURED[place]]


def _worse(tried: Learned, kind: Kind) -> str:
    """Say why the limits are worse than those in force; "" where they are not."""
    alarms, before = list(_alarms(tried, kind.runs)), len(list(_alarms(kind.limits, kind.runs)))
    if len(alarms) > before:
        first = max(alarms, key=lambda each: each.reach)
        return (
            f"{len(alarms)} alarms in healthy runs, {before} by version {kind.version}: {first.metric} reached"
            f" {first.reach} % of its floor, the limit was {first.limit} %"
        )
    missed, before = _missed(tried, kind.confirmed), len(_missed(kind.limits, kind.confirmed))
    if len(missed) > before:
        return (
            f"{len(missed)} confirmed verdicts missed, {before} by version {kind.version}: one of {missed[0].metric}"
            f" at {missed[0].size} % of its floor"
        )
    return ""


def _alarms(limits: Learned, runs: Sequence[Run]) -> Iterator[_Alarm]:
    """Yield each alarm that the limits would have raised in healthy runs: one of each run, metric and place."""
    for run in runs:
        for name, pair in limits.items():
            for place, limit in enumerate(pair):
                reach = run.reach.get(name, (None, None))[place]
                if limit is not None and reach is not None and reach >= limit:
                    yield _Alarm(name, place, reach, limit)


def _missed(limits: Learned, confirmed: Sequence[Confirmed]) -> list[Confirmed]:
    return [each for each in confirmed if each.size < _limit_of(limits, each)]


def _limit_of(limits: Learned, found: Confirmed) -> int:
    place = EARLY if found.early else LATE
    learned = limits.get(found.metric, (None, None))[place]
    return most(found.metric, place) if learned is None else learned


def _without_alarms(limits: Learned, kind: Kind) -> dict[str, Pair]:
    """Return the limits less those beyond which a healthy run has gone: there, the shipped ones hold."""
    beyond = {(alarm.metric, alarm.place) for alarm in _alarms(limits, kind.runs)}
    pairs = {
        name: (
            None if (name, EARLY) in beyond else pair[EARLY],
            None if (name, LATE) in beyond else pair[LATE],
        )
        for name, pair in limits.items()
    }
    return {name: pair for name, pair in pairs.items() if pair != (None, None)}
