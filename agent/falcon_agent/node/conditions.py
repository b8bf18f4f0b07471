"""Keep the node's conditions up to date: write them when they change, and now and then to show that they still hold.

Before each write the conditions are read, and while one holds they are read each minute: a person who sets a condition
to False, or removes it, has said that the problem is over.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Protocol

import structlog

from falcon_agent.node.api import NodeCondition
from falcon_agent.node.cpu_contention import Busy
from falcon_agent.node.problems import TYPES, Condition, Problems
from falcon_core.model import CPU_BUSY_CONDITION
from falcon_core.text import clip

HEARTBEAT_SECONDS = 300.0  # as the kubelet's own conditions
LOOK_SECONDS = 60.0  # while a condition holds
BUSY_SECONDS = 30.0  # between two changes of who uses the CPUs: pods that start and stop change it each few seconds
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 2.0, 120.0
_MOST_SHOWN = 300
_log = structlog.get_logger()


class Api(Protocol):
    """The node at the API server. Both calls raise OSError."""

    def conditions(self) -> dict[str, NodeCondition]:
        """Read the node's conditions, by type."""

    def write(self, conditions: list[dict[str, Any]]) -> None:
        """Put conditions in the place of those of the same types."""


class Keeper:
    """Brings the API server's conditions together with ``problems``, and with who uses the CPUs where it is read."""

    def __init__(self, api: Api, problems: Problems, busy: Busy | None = None) -> None:
        self._api = api
        self._problems = problems
        self._busy = busy
        self._kinds = TYPES if busy is None else (*TYPES, CPU_BUSY_CONDITION)
        self._written: dict[str, Condition] | None = None  # None: nothing was read yet
        self._heartbeat = 0.0  # when it was last written
        self._busy_at = float("-inf")  # when the condition of the CPUs was last written
        self._looked = 0.0
        self._retry_at = 0.0
        self._retry_seconds = FIRST_RETRY_SECONDS

    def keep(self, now: float) -> None:
        """Read and write as far as it is due; ``now``: Unix seconds. What fails is tried again later."""
        if now < self._retry_at or not self._due(now):
            return
        try:
            self._settle(now)
            self._retry_seconds = FIRST_RETRY_SECONDS
        except OSError as error:
            _log.warning("the node's conditions wait", error=clip(str(error), _MOST_SHOWN), seconds=self._retry_seconds)
            # Daemons of all nodes meet the same outage: longer pauses keep them from loading the API server.
            self._retry_at = now + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)

    def _due(self, now: float) -> bool:
        if self._written is None or now - self._heartbeat >= HEARTBEAT_SECONDS:
            return True
        holds = any(condition.holds for kind, condition in self._written.items() if kind in TYPES)
        return (holds and now - self._looked >= LOOK_SECONDS) or bool(self._changed(now))

    def _changed(self, now: float) -> list[str]:
        written = self._written or {}
        wanted = self._wanted(now)
        rests = now - self._busy_at < BUSY_SECONDS
        kinds = (kind for kind in self._kinds if not (rests and kind == CPU_BUSY_CONDITION))
        return [kind for kind in kinds if wanted[kind].differs(written.get(kind))]

    def _wanted(self, now: float) -> dict[str, Condition]:
        found = self._problems.conditions(now)
        return found if self._busy is None else {**found, CPU_BUSY_CONDITION: self._busy.condition}

    def _settle(self, now: float) -> None:
        there = {kind: _condition(found) for kind, found in self._api.conditions().items() if kind in self._kinds}
        # After a restart the conditions in the cluster are all that is known of earlier problems.
        if self._written is None:
            for kind, condition in there.items():
                if kind in TYPES:
                    self._problems.adopt(kind, condition, now)
        else:
            self._take_back(self._written, there, now)
        self._written = there
        self._looked = now
        changed = self._changed(now)
        # Every write costs the API server a change of the node, so unchanged conditions are written rarely.
        kinds = self._kinds if now - self._heartbeat >= HEARTBEAT_SECONDS else changed
        if kinds:
            self._write(list(kinds), there, now)

    def _take_back(self, written: dict[str, Condition], there: dict[str, Condition], now: float) -> None:
        """Forget the problems that a person has declared to be over since the last look."""
        for kind, condition in written.items():
            if kind in TYPES and condition.holds and not (kind in there and there[kind].holds):
                _log.info("a person has declared it to be over", condition=kind, was=condition.reason)
                self._problems.clear(kind, now)

    def _write(self, kinds: list[str], there: dict[str, Condition], now: float) -> None:
        wanted = self._wanted(now)
        bodies: list[dict[str, Any]] = []
        for kind in kinds:
            before, after = there.get(kind), wanted[kind]
            # The time of a transition moves with the status alone, as Kubernetes defines it: a new message is none.
            same = before is not None and before.holds == after.holds
            bodies.append(_body(kind, after, since=before.since if same and before is not None else now, now=now))
            if after.differs(before):
                _log.info("condition", type=kind, status=after.holds, reason=after.reason, message=after.message)
        self._api.write(bodies)
        self._written = {**there, **{kind: wanted[kind] for kind in kinds}}
        if CPU_BUSY_CONDITION in kinds:
            self._busy_at = now
        if len(kinds) == len(self._kinds):
            self._heartbeat = now


def _body(kind: str, condition: Condition, *, since: float, now: float) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True" if condition.holds else "False",
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": _rfc3339(now),
        "lastTransitionTime": _rfc3339(since),
    }


def _condition(found: NodeCondition) -> Condition:
    """Read a condition; "Unknown" does not hold, since only people write it."""
    return Condition(
        holds=found.status == "True",
        reason=found.reason,
        message=found.message,
        since=_unix_seconds(found.last_transition_time),
    )


def _rfc3339(unix_seconds: float) -> str:
    return dt.datetime.fromtimestamp(unix_seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _unix_seconds(text: str | None) -> float:
    """Return the time that a condition names; 0 for none, and for one that cannot be parsed."""
    try:
        return dt.datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0
