"""What came of a case, in plain values: what both codes report, and what the verdict reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from evaluation.real_jobs.scene import Broken, Level
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.messages import RankSignals

REPLACEMENT_SECONDS: Final = 60.0  # the declared price of a replacement


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern with everything that is drawn or chosen for it."""

    pattern: str
    world: int
    level: Level
    seed: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a code knows of a job from its spec."""

    layout: Parallelism
    procs: int  # of a pod


class Pod(msgspec.Struct, kw_only=True):
    """A pod that is being prepared."""

    name: str
    node: int | None  # None: no spare is left
    asked_at: float
    ready_at: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to see at one moment; times in unix seconds."""

    now: float
    generation: int
    running: bool
    since: float  # the generation runs, or is awaited
    roles: list[int]  # the node of each replica
    names: list[str]  # the pod of each replica
    sent: list[RankSignals]
    prepared: dict[int, Pod]  # by replica
    spares: int


class Order(msgspec.Struct, frozen=True):
    """An action of the recovery that changes who runs where."""

    what: Literal["Prepare", "Switch", "Abandon", "Replace"]
    replica: int


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The open incident: ``rank`` or ``link_nodes`` once a component is named."""

    key: str  # the same for as long as it is open
    is_incident: bool = True  # False: only suspected
    rank: int | None = None
    also: list[int] = []  # further ranks
    link_ranks: list[int] = []  # the first of them
    link_members: int = 0  # all of them
    link_node: int | None = None
    cause: str = ""
    slowdown: float = 1.0
    met: bool = False  # the component was replaced already; the rank is on another node


def said_of(slow: Any, beside: Sequence[Any] = ()) -> Said:
    """Read an open slowdown of either code: both have these fields. ``beside``: of further nodes, in this code."""
    key = f"{slow.onset.generation}/{slow.onset.iteration}/{slow.onset.at}"
    if slow.culprit is not None:
        named = slow.culprit
        return Said(
            key=key,
            rank=named.rank,
            also=[*named.also, *(other.culprit.rank for other in beside)],
            cause=named.cause,
            slowdown=round(named.slowdown, 2),
            met=slow.phase == "Checking",
        )
    if slow.link is not None:
        node = slow.link.node
        return Said(
            key=key,
            link_ranks=[place.rank for place in slow.link.ranks],
            link_members=slow.link.members,
            link_node=int(node.removeprefix("node-")) if node else None,
            cause=slow.link.comm,
        )
    return Said(key=key, is_incident=slow.phase != "Suspected")


class Code(Protocol):
    """One code under comparison."""

    def look(self, seen: Seen) -> list[Order]:
        """Look at the job once."""
        ...

    def said(self) -> Said | None:
        """Return the open incident."""
        ...


class Incident(msgspec.Struct, kw_only=True):
    """A suspicion or incident, and every component that it named. Iterations count from 0, over all generations."""

    opened: int
    incident_at: int | None = None  # since which iteration it is an incident; None: it passed silently
    closed: int | None = None
    nodes: dict[int, int] = {}  # nodes with a rank that was named as slow → since which iteration
    links: dict[int, int] = {}  # nodes that a link touches, or the only node that it can be, likewise
    rank: int | None = None  # the first that was named
    cause: str = ""  # or the link's communicator
    slowdown: float = 1.0


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was taken."""

    at: int  # iteration
    node: int
    what: str
    slow: bool  # the node has a fault by then


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a case for one code."""

    case: Case
    iterations: int
    broken: list[Broken]
    incidents: list[Incident]
    taken: list[Taken]
    tracked: float  # share of looks × ranks after the first 100 iterations at which iterations were followed
    records_crc: int  # of the first records, the same for all codes
    records: int
    seconds: float  # CPU
