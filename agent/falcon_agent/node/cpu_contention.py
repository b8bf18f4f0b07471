"""Determine whether a node has an idle core, and who uses its cores: the reason why a rank waits for one.

A rank's own counters show that it waits for a core that its container's quota would let it have; that a neighbour takes
the core only the node can show. The condition is no problem of the node, and nothing is done about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from falcon_agent.node.cpu_usage import Usage
from falcon_agent.node.problems import Condition
from falcon_core.text import clip

REASON: Final = "NoIdleCore"
IDLE: Final = Condition(holds=False, reason="IdleCores")
WINDOW_SECONDS: Final = 4.0  # between two readings that are compared, at least
CALM_SECONDS: Final = 60.0  # after the last busy window
RENEWED_SECONDS: Final = 60.0  # figures change all the time: while the names stay, so long between two texts
BUSY_SHARE: Final = 0.95  # of the cores
NAMED_SHARE: Final = 0.1  # who uses more of the cores is named
MOST_NAMED: Final = 3
_NAME_CHARACTERS: Final = 100


class Busy:
    """The readings of one node. ``name_of``: a pod's namespace and name by its uid; empty where it is not known."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        self._name_of = name_of
        self._before: Usage | None = None
        self._users: set[str] = set()  # those that the text names
        self._renewed_at = self._busy_at = float("-inf")
        self.condition = IDLE

    def feed(self, usage: Usage) -> None:
        """Take a reading over, and change the condition where people would read something else."""
        before = self._before
        # Counters that go back were reset, as after a move of the kubelet's groups: begin again.
        if before is None or usage.at < before.at or usage.total_ns < before.total_ns:
            self._before = usage
            return
        seconds = usage.at - before.at
        if seconds < WINDOW_SECONDS:
            return
        self._before = usage
        used = (usage.total_ns - before.total_ns) / 1e9 / seconds
        # The condition ends only after a calm while, so that it does not change with each burst.
        if used < BUSY_SHARE * usage.cores:
            if usage.at - self._busy_at >= CALM_SECONDS:
                self._users, self.condition = set(), IDLE
            return
        self._busy_at = usage.at
        self._name(self._cores(before, usage, seconds, used), usage)

    def _cores(self, before: Usage, usage: Usage, seconds: float, used: float) -> dict[str, float]:
        """Return the cores that each user takes, the greatest first: those that are to be named."""
        # A pod that was not there before has used all its time since; no more than everybody together.
        pods = {
            uid: min(max(0.0, (ns - before.pods_ns.get(uid, 0)) / 1e9 / seconds), used)
            for uid, ns in usage.pods_ns.items()
        }
        users = {self._name_of(uid) or f"pod {uid}": cores for uid, cores in pods.items()}
        # What no pod has used was used by the node's own services.
        users["processes outside pods"] = used - sum(pods.values())
        most = sorted(users.items(), key=lambda user: -user[1])[:MOST_NAMED]
        return {clip(name, _NAME_CHARACTERS): cores for name, cores in most if cores >= NAMED_SHARE * usage.cores}

    def _name(self, cores: dict[str, float], usage: Usage) -> None:
        """Write the text again when other pods are named, or after a while."""
        if set(cores) == self._users and usage.at - self._renewed_at < RENEWED_SECONDS:
            return
        self._users, self._renewed_at = set(cores), usage.at
        words = ", ".join(f"{name} {each:.2f}" for name, each in cores.items())
        text = f"of {usage.cores:.2f} cores: {words}" if words else f"many take a part of {usage.cores:.2f} cores"
        self.condition = Condition(holds=True, reason=REASON, message=text)
