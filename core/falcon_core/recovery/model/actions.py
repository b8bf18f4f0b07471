"""Name what the recovery orders (commands) and what it has closed (notices)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from falcon_core.recovery.model.failure import HangIncident, RetryIncident, StopIncident
from falcon_core.recovery.model.planned_move import PlannedMove
from falcon_core.recovery.model.slowdown import SlowIncident


class Restart(msgspec.Struct, frozen=True):
    """Stop every process and start a new generation in the same pods."""


class Recreate(msgspec.Struct, frozen=True):
    """Make a replica's pod again (with a new name), on its own node where ``stay``; then a new generation."""

    replica: int
    stay: bool


class Replace(msgspec.Struct, frozen=True):
    """Exclude the replica's node and let a new pod elsewhere take its place, in a new generation at once."""

    replica: int
    reason: str
    lost: bool  # its processes count as dead; otherwise they have to acknowledge the stop
    node_not_ready: bool  # a witness outside the job: the node may be fenced
    incident: str = ""  # id of the incident that needs it


class Prepare(msgspec.Struct, frozen=True):
    """Prepare a pod elsewhere while training goes on.

    ``exclude``: the job does not use the replica's node any more. It may where nothing is wrong with the node.
    """

    replica: int
    reason: str
    incident: str = ""  # id of the incident that needs it
    exclude: bool = True


class Switch(msgspec.Struct, frozen=True):
    """Let the prepared pod take the replica over, in a new generation."""

    replica: int
    lost: bool = False  # as of Replace


class Swap(msgspec.Struct, frozen=True):
    """Let running pods exchange their roles, in a new generation.

    ``pods_of``: for each replica the one whose pod takes its role, a permutation.
    """

    pods_of: tuple[int, ...]


class Abandon(msgspec.Struct, frozen=True):
    """Give the prepared pod and its spare back, and let the job use the replica's node again."""

    replica: int


class GiveUp(msgspec.Struct, frozen=True):
    """Fail the job."""

    message: str


class SlowClosed(msgspec.Struct, frozen=True, kw_only=True):
    """A slowdown is over."""

    incident: SlowIncident
    outcome: Literal["Relieved", "Helped", "NotHelped", "Superseded"]
    iteration_ns: int | None = None
    cost_seconds: float | None = None


class StopClosed(msgspec.Struct, frozen=True, kw_only=True):
    """A failure is over: training goes on, or the job was given up."""

    incident: StopIncident
    resumed: bool
    seconds: float  # since the first sign


class HangClosed(msgspec.Struct, frozen=True, kw_only=True):
    """A hang is over: training moves again, or all ranks were restarted."""

    incident: HangIncident
    moved: bool
    seconds: float


class RetriesClosed(msgspec.Struct, frozen=True, kw_only=True):
    """Set-up calls were repeated in place, and the ranks went on."""

    incident: RetryIncident


class MoveClosed(msgspec.Struct, frozen=True, kw_only=True):
    """Training goes on after a planned move."""

    incident: PlannedMove
    seconds: float  # time for which training stood still


Action = (
    Restart
    | Recreate
    | Replace
    | Prepare
    | Switch
    | Swap
    | Abandon
    | GiveUp
    | SlowClosed
    | StopClosed
    | HangClosed
    | RetriesClosed
    | MoveClosed
)


RESTARTS: Final = (Restart, Recreate, Replace, Switch, Swap)  # they end the generation


def left_replicas(actions: Iterable[Action]) -> set[int]:
    """Return the replicas whose nodes these actions leave."""
    return {action.replica for action in actions if isinstance(action, Replace | Switch)}
