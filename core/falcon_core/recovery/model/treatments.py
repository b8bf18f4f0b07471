"""Keep what was done against a slowdown by moving micro-batches or exchanging roles, and what came of it."""

from __future__ import annotations

from falcon_core.recovery.model.stored import Stored


class Sharing(Stored, frozen=True, kw_only=True):
    """How many micro-batches the ranks of a generation are ordered to compute (``mitigation.rebalance``)."""

    generation: int
    shares: list[int]  # micro-batches by rank
    per_rank: int  # micro-batches of a rank in the even split
    at: float  # when the order was given, unix seconds
    moves: int = 1  # number of moves away from the even split in this generation
    taken_iteration: int = 0  # iteration at the first look that found all ranks with their shares; 0: not yet

    @property
    def is_even(self) -> bool:
        """Check whether this is the even split."""
        return all(share == self.per_rank for share in self.shares)


class Moved(Stored, frozen=True, kw_only=True):
    """The result of moving micro-batches against a slowdown. Times are of an iteration."""

    per_rank: int  # micro-batches of a rank in the even split
    share: int  # micro-batches of the culprit
    most: int  # most micro-batches of another rank
    before_ns: int
    expected_ns: int  # iteration time by the plan, which is optimal
    slowest_ns: int  # computation of the slowest rank by the plan
    after_ns: int = 0  # 0: not measured yet
    failed: str = ""  # reason why the even split was ordered again, though the slowdown lasts
    failed_at: float = 0.0


class Exchanged(Stored, frozen=True, kw_only=True):
    """A pod that gives its role to another pod, and takes the role of that pod or of a third one."""

    pod_name: str
    node: str
    role: int  # replica that it holds until the exchange
    next_role: int  # replica that it holds from the exchange on


class Outlook(Stored, frozen=True, kw_only=True):
    """The expected effect of an exchange of roles, by the newest plan."""

    at: float  # unix seconds
    removed_share: float = 0.0  # share of the slowdown's cost that it would remove; 0: there is no exchange
    why: str = ""  # reason why there is none
    moves: dict[int, int] = {}  # by replica the role that its pod takes, at most ``link_swap.MOST_MOVES``


class Swapped(Stored, frozen=True, kw_only=True):
    """The exchange of roles against a slowdown, and its result. Times are of an iteration."""

    pods: list[Exchanged]  # the first ``swap_for_link.MOST_NAMED`` of the exchanged pods
    total: int  # number of all exchanged pods
    before_ns: int
    expected_ns: int  # iteration time in the model (``planning.placement.placement_model``)
    after_ns: int = 0  # 0: not measured yet
    failed: str = ""  # reason why it counts as not having helped
    failed_at: float = 0.0


class SlowPair(Stored, frozen=True, kw_only=True):
    """A link that roles were exchanged against (``strategies.known_slow_links``)."""

    nodes: list[str]  # the nodes at its ends; a single one for a node's adapter
    at: float  # time of the exchange, unix seconds
    seconds_per_byte: float = 0.0  # time that a byte of an iteration's traffic on it had cost; 0: not known
