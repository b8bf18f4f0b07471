"""Keep who may be slow without an onset, and how long earlier slowdowns lasted and stayed with a node."""

from __future__ import annotations

from typing import Literal

from falcon_core.model import Cause
from falcon_core.recovery.model.stored import Stored


class SinceStart(Stored, frozen=True, kw_only=True):
    """Who has computed longer than its peers ever since a generation's levels had settled (``from_start``)."""

    generation: int
    iteration: int = 0  # of the first look; 0: nobody may join any more
    ranks: list[int] = []  # at most ``from_start.MOST_SUSPECTS``
    reports: int = 0  # in which all of them did
    counted_iteration: int = 0  # of the newest of these reports


class Suspect(Stored, frozen=True, kw_only=True):
    """The rank that stood out alone in the newest slow windows (``pieces``)."""

    rank: int
    node: str
    windows: int  # for it, less those against it
    at: float  # when the newest of them was seen
    generation: int
    iteration: int  # up to which windows are counted
    beginnings: list[int]  # of the newest spells in which it stood out, iterations of that generation

    @property
    def since(self) -> int:
        """Return the first iteration of the newest spell."""
        return self.beginnings[-1]


class Compared(Stored, frozen=True, kw_only=True):
    """How the groups of a generation compare with those of their kind (``sibling_groups``)."""

    generation: int
    iteration: int = 0  # of the first look
    comm: str = ""  # of the group that is slower; "": none is so far
    reports: int = 0  # in which it was
    counted_iteration: int = 0  # of the newest of these reports
    over: bool = False  # nobody is asked any more


class Grown(Stored, frozen=True, kw_only=True):
    """Whose computation has grown by itself, in a generation without an onset (``without_onset``)."""

    generation: int
    iteration: int  # of the look that found the first of them
    healthy_ns: int  # the job's iteration time at that look
    compute_ns: dict[int, int] = {}  # healthy computation at the look that found it, by rank
    reports: int = 0  # in which all of them were slow
    slow_ns: float = 0.0  # the job's iteration time, its mean over these reports
    counted_iteration: int = 0  # of the newest of these reports


class Lasted(Stored, frozen=True, kw_only=True):
    """How long a slowdown of a named rank or link lasted (``durations``)."""

    cause: Cause
    depth: int  # number of its depth among ``durations.DEPTHS``
    seconds: float  # from the onset
    censored: bool = False  # an action ended it: it would have lasted longer


class Stay(Stored, frozen=True, kw_only=True):
    """A slowness that stayed with a replica and its node until it ended (``confidence``)."""

    replica: int
    node: str
    end: Literal["Passed", "NotHelped", "Left"]  # by itself; it outlived a replacement; the node was left for a failure
    at: float  # when it ended
    generation: int  # in which it ended, after iteration ``last`` of that generation
    last: int
    iterations: int = 0  # for which it stayed
    slowdown: float = 0.0  # of the rank, when its figures were last taken
