"""Parts of what the recovery remembers (``state``).

Places, set-up calls that were tried again, planned moves, how micro-batches are shared out, who is slow without an
onset, and how long slowdowns lasted and stayed with a node.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.model import Cause


class _State(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base: camelCase, defaults left out; unknown fields of a newer version are ignored."""


class Place(_State, frozen=True, kw_only=True):
    """A rank's place: its pod and its node."""

    rank: int
    pod_name: str
    node: str


class RetryIncident(_State, frozen=True, kw_only=True):
    """Set-up calls of communicators that ranks have tried again in place, after which they went on."""

    id: str
    at: float  # when it was seen
    generation: int
    places: list[Place]  # the first NAMED_RANKS
    ranks: int  # all of them
    retries: int  # of all of them


class Retried(_State, frozen=True, kw_only=True):
    """The retries that the ranks of a generation have reported."""

    generation: int
    retries: int
    since: float  # when there were first so many
    shown: int = 0  # so many of them by incidents
    shown_at: float = 0.0  # when the newest of these incidents was made, unix seconds


class LeavingNode(_State, frozen=True, kw_only=True):
    """A node of the job that is to be left though nothing has failed, and how far the replica's move is (``planned``).

    ``since``: of the notice, as far as Falcon has seen it, unix seconds.
    """

    replica: int
    pod_name: str
    node: str
    why: str
    urgent: bool = False
    since: float
    preparing: bool = False  # a pod on another node is being prepared
    blocked: str = ""  # why none is
    retry_at: float = 0.0  # earliest time of the next preparation, unix seconds


class PlannedMove(_State, frozen=True, kw_only=True):
    """Replicas that leave their nodes in one restart, before anything fails."""

    id: str
    since: float  # of the first notice, unix seconds
    began_at: float  # when the first pod was asked for
    leaving: list[LeavingNode]  # until the restart: all that are being prepared; then those that it has moved
    generation: int = 0  # that the restart ended
    iterations: int = 0  # that this generation had completed
    switched_at: float | None = None  # when the restart began

    @property
    def restarts(self) -> bool:
        """Check whether its restart has begun."""
        return self.switched_at is not None


class SinceStart(_State, frozen=True, kw_only=True):
    """Who has computed longer than its peers ever since a generation's levels had settled (``from_start``)."""

    generation: int
    iteration: int = 0  # of the first look; 0: nobody may join any more
    ranks: list[int] = []  # at most ``from_start.MOST_SUSPECTS``
    reports: int = 0  # in which all of them did
    counted_iteration: int = 0  # of the newest of these reports


class Suspect(_State, frozen=True, kw_only=True):
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


class Compared(_State, frozen=True, kw_only=True):
    """How the groups of a generation compare with those of their kind (``sibling_groups``)."""

    generation: int
    iteration: int = 0  # of the first look
    comm: str = ""  # of the group that is slower; "": none is so far
    reports: int = 0  # in which it was
    counted_iteration: int = 0  # of the newest of these reports
    over: bool = False  # nobody is asked any more


class Grown(_State, frozen=True, kw_only=True):
    """Whose computation has grown by itself, in a generation without an onset (``without_onset``)."""

    generation: int
    iteration: int  # of the look that found the first of them
    healthy_ns: int  # the job's iteration time at that look
    compute_ns: dict[int, int] = {}  # healthy computation at the look that found it, by rank
    reports: int = 0  # in which all of them were slow
    slow_ns: float = 0.0  # the job's iteration time, its mean over these reports
    counted_iteration: int = 0  # of the newest of these reports


class Sharing(_State, frozen=True, kw_only=True):
    """How many micro-batches the ranks of a generation are asked to compute (``sharing``)."""

    generation: int
    shares: list[int]  # by rank
    per_rank: int  # in the even split
    at: float  # when it was asked for, unix seconds
    moves: int = 1  # how often micro-batches were moved away from the even split in this generation
    taken_iteration: int = 0  # of the first look at which all ranks had their shares; 0: not yet

    @property
    def is_even(self) -> bool:
        """Check whether this is the even split."""
        return all(share == self.per_rank for share in self.shares)


class Moved(_State, frozen=True, kw_only=True):
    """What came of moving micro-batches against a slowdown. Times are of an iteration."""

    per_rank: int  # in the even split
    share: int  # of the culprit
    most: int  # of another rank
    before_ns: int
    expected_ns: int  # by the plan, which is the best that there is
    slowest_ns: int  # what the slowest rank computes by the plan
    after_ns: int = 0  # 0: not measured yet
    failed: str = ""  # why the even split was asked for again, though the slowdown lasts
    failed_at: float = 0.0


class Exchanged(_State, frozen=True, kw_only=True):
    """A pod whose role another pod takes, and gives it its own or a third one's."""

    pod_name: str
    node: str
    role: int  # replica, until the exchange
    next_role: int  # from the exchange on


class Outlook(_State, frozen=True, kw_only=True):
    """What an exchange of roles would bring, as it was planned last."""

    at: float  # unix seconds
    removed_share: float = 0.0  # of what the slowdown costs; 0: there is no exchange
    why: str = ""  # why there is none
    moves: dict[int, int] = {}  # by replica the role that its pod takes, at most ``swapping.MOST_MOVES``


class Swapped(_State, frozen=True, kw_only=True):
    """The exchange of roles against a slowdown, and what came of it. Times are of an iteration."""

    pods: list[Exchanged]  # the first ``swap_nodes.MOST_NAMED``
    total: int  # all of them
    before_ns: int
    expected_ns: int  # by the model (``planning.placement_model``)
    after_ns: int = 0  # 0: not measured yet
    failed: str = ""  # why it counts as not having helped
    failed_at: float = 0.0


class SlowPair(_State, frozen=True, kw_only=True):
    """A link that roles were exchanged against (``slow_pairs``)."""

    nodes: list[str]  # at its ends; one for a node's adapter
    at: float  # of the exchange, unix seconds
    seconds_per_byte: float = 0.0  # what a byte that crossed it in an iteration had cost; 0: not known


class Lasted(_State, frozen=True, kw_only=True):
    """How long a slowdown of a named rank or link lasted (``durations``)."""

    cause: Cause
    depth: int  # number of its depth among ``durations.DEPTHS``
    seconds: float  # from the onset
    censored: bool = False  # an action ended it: it would have lasted longer


class Stay(_State, frozen=True, kw_only=True):
    """A slowness that stayed with a replica and its node until it ended (``confidence``)."""

    replica: int
    node: str
    end: Literal["Passed", "NotHelped", "Left"]  # by itself; it outlived a replacement; the node was left for a failure
    at: float  # when it ended
    generation: int  # in which it ended, after iteration ``last`` of that generation
    last: int
    iterations: int = 0  # for which it stayed
    slowdown: float = 0.0  # of the rank, when its figures were last taken
