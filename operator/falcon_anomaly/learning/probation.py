"""Hold what a job's windows show until nothing has come of them for half an hour: only then are they healthy.

A fault shows in the series before any detector finds it. So each measurement waits. Where trouble follows, it is
dropped, and all that the generation shows later counts for nothing. Trouble is what the operator knows (an incident, a
failure, a repair, a state other than Running), or a verdict that the shipped limits raise.

A verdict that learned limits alone raise is no trouble. If nothing comes of it, the limits were too low, and its
windows say so. If trouble follows, the verdict is kept as confirmed. A verdict that is raised after trouble began is
not: the trouble may have caused it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from falcon_anomaly.judge import Verdict
from falcon_anomaly.learning.document import larger
from falcon_anomaly.learning.limits import EARLY, LATE, Pair, learnable

WAITS_SECONDS: Final = 1800.0
MOST_WAITING: Final = 96  # measurements: those of more than two hours
MOST_PERCENT: Final = 100_000


class _Measurement(NamedTuple):
    at: float
    place: int
    reach: Mapping[str, int]  # percent of the floor


class _Doubtful(NamedTuple):
    """A verdict that learned limits alone have raised."""

    at: float
    size: int  # percent of the floor
    early: bool


class Confirmation(NamedTuple):
    """Such a verdict that trouble has followed."""

    metric: str
    early: bool
    size: int


class Probation:
    """What one generation of a job shows."""

    def __init__(self) -> None:
        self.measured = [0, 0]  # healthy measurements, by place
        self.reach: dict[str, Pair] = {}  # the largest of each metric in them
        self.confirmed: set[Confirmation] = set()
        self.troubled = False
        self._waiting: deque[_Measurement] = deque(maxlen=MOST_WAITING)
        self._doubtful: dict[tuple[int, str], _Doubtful] = {}  # by rank and metric

    def measure(self, at: float, early: bool, reaches: Mapping[str, float]) -> None:
        """Take a measurement: shares of each metric's floor (``reach.reaches``)."""
        if not self.troubled:
            percent = {name: min(MOST_PERCENT, round(100 * share)) for name, share in reaches.items()}
            self._waiting.append(_Measurement(at, EARLY if early else LATE, percent))

    def judged(self, at: float, early: bool, verdicts: Iterable[Verdict]) -> None:
        """Take the verdicts of a look, all that stand. After trouble began they count for nothing."""
        if self.troubled:
            return
        shipped = set[int | None]()
        for one in verdicts:
            if not one.learned_alone:
                shipped.add(one.rank)
            elif one.rank is not None and learnable(one.metric.partition(":")[0]):
                known = (one.rank, one.metric)
                size = min(MOST_PERCENT, round(100 * one.floors))
                self._doubtful.setdefault(known, _Doubtful(at, size, early))
        if shipped:
            self._end({rank for rank in shipped if rank is not None})

    def report(self, at: float, quiet: bool) -> None:
        """Take what the operator says of the time until now: ``measured`` and ``reach`` grow by what was healthy."""
        if not quiet:
            self._end({rank for rank, _ in self._doubtful})
        while self._waiting and at - self._waiting[0].at >= WAITS_SECONDS:
            self._settle(self._waiting.popleft())
        self._doubtful = {known: one for known, one in self._doubtful.items() if at - one.at < WAITS_SECONDS}

    def _settle(self, one: _Measurement) -> None:
        self.measured[one.place] += 1
        for name, percent in one.reach.items():
            new: Pair = (percent, None) if one.place == EARLY else (None, percent)
            self.reach[name] = larger(self.reach.get(name, (None, None)), new)

    def _end(self, ranks: set[int]) -> None:
        """Let the generation count as healthy no longer, and confirm the doubtful verdicts on these ranks."""
        if self.troubled:
            return
        for (rank, metric), one in self._doubtful.items():
            if rank in ranks and one.size > 0:
                self.confirmed.add(Confirmation(metric.partition(":")[0], one.early, one.size))
        self.troubled = True
        self._doubtful.clear()
        self._waiting.clear()
