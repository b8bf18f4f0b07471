"""Keep who may be slow without an onset, and how long earlier slowdowns lasted and stayed with a node."""

from __future__ import annotations

from typing import Literal

from falcon_core.model import Cause
from falcon_core.recovery.model.stored import Stored


class SinceStart(Stored, frozen=True, kw_only=True):
    """The ranks that are slower than their peers since the levels of some calls settled (``slow_from_start``)."""

    generation: int
    began: int = 1  # iteration from which iterations have had these calls
    calls: int = 0  # number of calls of an iteration, of all ranks together; 0: not known yet
    size_class: int = -1  # class of their bytes (``wire.reporting.messages``); -1: not known, or bytes vary
    settles: bool = False  # the ranks' levels of these calls have not settled yet
    iteration: int = 0  # iteration at the first look; 0: no rank is added any more
    ranks: list[int] = []  # at most ``slow_from_start.MOST_SUSPECTS``
    reports: int = 0  # number of reports in which all of these ranks were slow
    counted_iteration: int = 0  # iteration of the newest of these reports


class Suspect(Stored, frozen=True, kw_only=True):
    """The rank that stood out alone in the newest slow windows (``diagnosis.intermittent``)."""

    rank: int
    node: str
    windows: int  # number of windows for it, less those against it
    at: float  # when the newest of these windows was seen
    generation: int
    iteration: int  # iteration of the generation up to which windows are counted
    beginnings: list[int]  # first iterations of the newest spells in which it stood out
    at_move: bool = False  # the newest window is of the iterations for which micro-batches were moved

    @property
    def since(self) -> int:
        """Return the first iteration of the newest spell."""
        return self.beginnings[-1]


class Compared(Stored, frozen=True, kw_only=True):
    """How the groups of a generation compare with those of their kind (``probe.group_comparison``)."""

    generation: int
    iteration: int = 0  # iteration at the first look
    comm: str = ""  # communicator of the slower group; "": none so far
    reports: int = 0  # number of reports in which this group was slower
    counted_iteration: int = 0  # iteration of the newest of these reports
    over: bool = False  # the comparison of this generation has ended


class Grown(Stored, frozen=True, kw_only=True):
    """The ranks whose computation grew in a generation without an onset (``diagnosis.slow_without_onset``)."""

    generation: int
    iteration: int  # iteration at the look that found the first of them
    healthy_ns: int  # the job's iteration time at that look
    compute_ns: dict[int, int] = {}  # healthy computation by rank, at the look that found the rank
    reports: int = 0  # number of reports in which all of these ranks were slow
    slow_ns: float = 0.0  # mean iteration time of the job over these reports
    counted_iteration: int = 0  # iteration of the newest of these reports


class Lasted(Stored, frozen=True, kw_only=True):
    """How long a slowdown of a named rank or link lasted (``history.durations``)."""

    cause: Cause
    depth: int  # index of its depth in ``durations.DEPTHS``
    seconds: float  # time from the onset to the end
    censored: bool = False  # an action ended it: it would have lasted longer


class Stay(Stored, frozen=True, kw_only=True):
    """A slowness that stayed with a replica and its node until it ended (``history.node_fault``)."""

    replica: int
    node: str
    end: Literal["Passed", "NotHelped", "Left"]  # it passed; a replacement did not help; the node failed
    at: float  # when it ended
    began_at: float = 0.0  # when it began; 0: not known
    generation: int  # generation in which it ended, after its iteration ``last``
    last: int
    iterations: int = 0  # number of iterations for which it stayed
    slowdown: float = 0.0  # slowdown of the rank, when its figures were last taken; 0.0: not known
    against_peers: bool = False  # ``slowdown`` compares with the peers, since no healthy computation was known
