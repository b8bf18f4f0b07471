"""Hold what is learned of all kinds of jobs, within the room of one ConfigMap.

Where the room is used up, the namespace that takes most of it loses its kind that was not used for longest: a tenant
who runs a job of another kind each hour pushes out kinds of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import structlog

from falcon_anomaly.detectors.peers import Limit
from falcon_anomaly.learning import document, versions
from falcon_anomaly.learning.document import Confirmed, DamagedError, Kind, NewerFormatError, Run
from falcon_anomaly.learning.limits import in_force, scale
from falcon_anomaly.learning.probation import Confirmation, Probation
from falcon_core.wire.lessons import MAX_MODELS_BYTES, Models, models_bytes

STEP: Final = 20  # measurements: half an hour
MOST_MEASURED: Final = 960  # a day: more says no more
ROOM_BYTES: Final = MAX_MODELS_BYTES - (8 << 10)
log = structlog.get_logger("falcon_anomaly")


class Library:
    """All kinds. What the operator passes on is the truth: this process keeps nothing that the ConfigMap lacks."""

    def __init__(self) -> None:
        self.damaged = 0  # texts that could not be read, and were given up
        self._scale = scale()
        self._stored: Models = {}
        self._kinds: dict[str, Kind] = {}
        self._foreign: Models = {}  # of a later release: left as they are
        self._outdated: Models = {}  # measured on another scale: left until something is learned on this one

    @property
    def count(self) -> int:
        """Return how many kinds are known."""
        return len(self._kinds)

    def take(self, models: Models) -> None:
        """Read what is stored. A kind that is damaged, or measured on another scale, is learned from the start."""
        if models == self._stored:
            return
        self._stored, self._kinds, self._foreign, self._outdated = models, {}, {}, {}
        for name, text in models.items():
            try:
                kind = document.decode(text)
            except NewerFormatError:
                self._foreign[name] = text
            except DamagedError as error:
                self.damaged += 1
                log.warning("a kind of job cannot be read, and is learned from the start", kind=name, error=str(error))
            else:
                if kind.scale == self._scale:
                    self._kinds[name] = kind
                else:
                    # A release that is rolled back finds its own again.
                    self._outdated[name] = text

    def limits(self, name: str) -> Mapping[str, Limit]:
        """Return the limits in force for jobs of this kind; none where nothing is learned."""
        kind = self._kinds.get(name)
        return {} if kind is None else in_force(kind.limits)

    def version(self, name: str) -> int:
        """Return the number of the version in force; 0 where nothing is learned."""
        kind = self._kinds.get(name)
        return 0 if kind is None else kind.version

    def used(self, name: str, day: int) -> None:
        """Note that a job of this kind trains on this day, days since 1970."""
        kind = self._kinds.get(name)
        if kind is not None and kind.used < day:
            self._kinds[name] = msgspec.structs.replace(kind, used=day)

    def learn(self, name: str, uid: str, shown: Probation, day: int) -> None:
        """Add what a job's run has shown by now, and make the kind's next version where that calls for one."""
        if name in self._foreign:
            return
        job = hashlib.sha256(uid.encode()).hexdigest()[:16]
        before = self._kinds.get(name, Kind(scale=self._scale, used=day))
        kind = _with_confirmed(before, job, shown.confirmed)
        # In steps, so that a job that trains on does not have the ConfigMap written at each lesson.
        early, late = (min(MOST_MEASURED, count // STEP * STEP) for count in shown.measured)
        if early or late:
            run = Run(job=job, day=day, measured=(early, late), reach=dict(sorted(shown.reach.items())))
            kind = document.with_run(kind, run)
        if kind != before:
            self._kinds[name] = versions.retrained(kind, day)

    def changed(self) -> Models | None:
        """Return what is to be stored, within the room; None where that is what was passed on."""
        known = {name: document.encode(kind) for name, kind in self._kinds.items()}
        texts = self._outdated | known | self._foreign
        texts = _within_room(texts, {name: kind.used for name, kind in self._kinds.items()})
        return texts if texts != self._stored else None


def _with_confirmed(kind: Kind, job: str, several: Iterable[Confirmation]) -> Kind:
    for each in sorted(several):
        kind = document.with_confirmed(kind, Confirmed(job=job, metric=each.metric, early=each.early, size=each.size))
    return kind


def _within_room(texts: Models, used: Mapping[str, int]) -> Models:
    """Return the texts without those for which there is no room."""
    kept = dict(texts)
    bytes_of: dict[str, int] = {}  # by the hash of the namespace
    for name, text in texts.items():
        owner = name.partition(".")[0]
        bytes_of[owner] = bytes_of.get(owner, 0) + models_bytes({name: text})
    while sum(bytes_of.values()) > ROOM_BYTES:
        largest = max(bytes_of, key=lambda owner: (bytes_of[owner], owner))
        own = [name for name in kept if name.partition(".")[0] == largest]
        gone = min(own, key=lambda name: (used.get(name, 0), name))
        bytes_of[largest] -= models_bytes({gone: kept.pop(gone)})
    return kept
