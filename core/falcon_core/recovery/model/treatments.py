"""Keep what was done against a slowdown by moving micro-batches or exchanging roles, and what came of it."""

from __future__ import annotations

from falcon_core.recovery.model.stored import Stored


class Sharing(Stored, frozen=True, kw_only=True):
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


class Moved(Stored, frozen=True, kw_only=True):
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


class Exchanged(Stored, frozen=True, kw_only=True):
    """A pod whose role another pod takes, and gives it its own or a third one's."""

    pod_name: str
    node: str
    role: int  # replica, until the exchange
    next_role: int  # from the exchange on


class Outlook(Stored, frozen=True, kw_only=True):
    """What an exchange of roles would bring, as it was planned last."""

    at: float  # unix seconds
    removed_share: float = 0.0  # of what the slowdown costs; 0: there is no exchange
    why: str = ""  # why there is none
    moves: dict[int, int] = {}  # by replica the role that its pod takes, at most ``swapping.MOST_MOVES``


class Swapped(Stored, frozen=True, kw_only=True):
    """The exchange of roles against a slowdown, and what came of it. Times are of an iteration."""

    pods: list[Exchanged]  # the first ``swap_nodes.MOST_NAMED``
    total: int  # all of them
    before_ns: int
    expected_ns: int  # by the model (``planning.placement.placement_model``)
    after_ns: int = 0  # 0: not measured yet
    failed: str = ""  # why it counts as not having helped
    failed_at: float = 0.0


class SlowPair(Stored, frozen=True, kw_only=True):
    """A link that roles were exchanged against (``slow_pairs``)."""

    nodes: list[str]  # at its ends; one for a node's adapter
    at: float  # of the exchange, unix seconds
    seconds_per_byte: float = 0.0  # what a byte that crossed it in an iteration had cost; 0: not known
