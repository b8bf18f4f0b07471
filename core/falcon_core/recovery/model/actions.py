"""Name the commands that the recovery gives, such as to restart a job or to prepare a pod."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec


class Restart(msgspec.Struct, frozen=True):
    """Stop every process and start a new generation in the same pods.

    ``rewinds``: the ranks leave out the newest checkpoints (``StopIncident.saved_before``).
    """

    rewinds: bool = False


class Recreate(msgspec.Struct, frozen=True):
    """Make a replica's pod again (with a new name), on its own node where ``stay``; then a new generation.

    ``joins``: the others train on, and the pod's ranks join them in the same generation.
    """

    replica: int
    stay: bool
    joins: bool = False


class Replace(msgspec.Struct, frozen=True):
    """Exclude the replica's node and let a new pod elsewhere take its place, in a new generation at once."""

    replica: int
    reason: str
    lost: bool  # its processes count as dead; otherwise they have to acknowledge the stop
    node_not_ready: bool  # a witness outside the job: the node may be fenced
    incident: str = ""  # id of the incident that needs it
    joins: bool = False  # as of Recreate


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

    ``pods_of``: for each replica, the replica whose pod takes its role: a permutation.
    """

    pods_of: tuple[int, ...]


class Abandon(msgspec.Struct, frozen=True):
    """Give the prepared pod and its spare back, and let the job use the replica's node again."""

    replica: int


class GiveUp(msgspec.Struct, frozen=True):
    """Fail the job, or let it wait for a person: without pods, until its spec changes."""

    message: str
    reason: Literal["RecoveryExhausted", "RepeatedFailure", "Outage"] = "RecoveryExhausted"
    waits: bool = False  # as ``spec.recovery.onRepeated`` wants it


Command = Restart | Recreate | Replace | Prepare | Switch | Swap | Abandon | GiveUp


_RESTARTS: Final = (Restart, Recreate, Replace, Switch, Swap)


def restarts(command: Command) -> bool:
    """Check whether a command ends the generation."""
    return isinstance(command, _RESTARTS) and not (isinstance(command, Recreate | Replace) and command.joins)


def left_replicas(commands: Iterable[Command]) -> set[int]:
    """Return the replicas whose nodes these commands leave."""
    return {command.replica for command in commands if isinstance(command, Replace | Switch)}
