"""Show on a job or a pool that a look at it failed: a condition and an Event, else the log and a metric.

The condition is written under the newest version of the object and changes nothing else of its status. Nothing here
raises but the loss of the leadership: a report of a failure must not become another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from falcon_operator.api.common import Condition
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.base.ports import Clock, Conflict, LeadershipLost, NotFound
from falcon_operator.status.conditions import is_true, put
from falcon_operator.status.failures import FAILED, Failure, Spell, finding, is_due, needs_event
from falcon_operator.status.limits import EVENT, fit_text

Reported = TypeVar("Reported", TrainingJob, WarmPool)
log = structlog.get_logger(__name__)


class Shown(Protocol[Reported]):
    """Where failures of one kind of object are shown."""

    async def newest(self, of: Reported) -> Reported | None:
        """Return the object as stored now; None if it is gone or another has its name."""
        ...

    async def write(self, of: Reported, conditions: list[Condition], failure: Failure | None) -> None:
        """Write the status with these conditions."""
        ...

    async def record(self, of: Reported, type_: str, reason: str, note: str) -> bool:
        """Record an Event. Return whether it is there; never raises."""
        ...


class FailureReports(Generic[Reported]):
    """The reports on objects of one kind. ``unshown`` is called for a failure that could be shown nowhere."""

    def __init__(self, shown: Shown[Reported], clock: Clock, unshown: Callable[[], None]) -> None:
        self._shown: Shown[Reported] = shown
        self._clock = clock
        self._unshown = unshown

    async def report(self, of: Reported, spell: Spell, failure: Failure | None) -> None:
        """Show a look's failure when it is due, and end the showing after a look that succeeded (None)."""
        if failure is None:
            spell.since = None
            if is_true(of.status, FAILED):
                await self._write(of, None)
            return
        now = self._clock.monotonic()
        # Many failures pass by themselves. They are shown only after a while.
        if not is_due(spell, failure, of.status.conditions, now):
            return
        written = await self._write(of, failure)
        if written:
            spell.shown_at = now
        if needs_event(spell, failure, now) and await self._record(of, failure):
            spell.event_reason, spell.event_at = failure.reason, now
        # Neither the status nor an Event could be written: the log and a metric are what is left.
        if not written and needs_event(spell, failure, now):
            meta = of.metadata
            log.error("failure not shown", name=meta.name, namespace=meta.namespace, failure=failure.message)
            self._unshown()

    async def _write(self, of: Reported, failure: Failure | None) -> bool:
        """Write the condition. Return whether it is there."""
        try:
            # The failed look may have been one with an old version of the object.
            newest = await self._shown.newest(of)
            if newest is None:
                return True
            conditions = put(
                newest.status.conditions,
                [finding(failure)],
                now=self._clock.unix(),
                observed_generation=newest.metadata.generation,
            )
            await self._shown.write(newest, conditions, failure)
        except LeadershipLost:
            raise
        except (Conflict, NotFound):
            return False
        except Exception as error:  # noqa: BLE001 - whatever keeps the status from being written
            log.warning("failure not written", name=of.metadata.name, error=str(error) or type(error).__name__)
            return False
        return True

    async def _record(self, of: Reported, failure: Failure) -> bool:
        note = fit_text(f"{failure.reason}: {failure.message}", EVENT)
        return await self._shown.record(of, "Warning", FAILED, note) is not False
