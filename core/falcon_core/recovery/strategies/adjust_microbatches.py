"""S2: give the slow rank fewer micro-batches and the others more (FALCON §5.3). Nothing restarts.

It applies where a rank computes slowly and the script lets its micro-batches move (``falcon_torch.MicroBatches``): the
ranks themselves say so, how many they have, and what one takes. The plan is exact (``planning.microbatch``): t is the
rank's own time of a micro-batch, and what it computes besides is fixed. Each rank keeps two micro-batches: its last
contains the exchange of gradients, and shows no time.

It takes no node and stops nobody, so neither evidence against a node nor a spare is needed. Its price is a guess of
what the change costs: one second of loss keeps mere noise from moving anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from falcon_core.planning.microbatch import MIN_GAIN, predict
from falcon_core.planning.microbatch import plan as share_out
from falcon_core.recovery.medians import Floats, medians
from falcon_core.recovery.observation import Observation, Policy, RankSeen
from falcon_core.recovery.remembered import Moved
from falcon_core.wire.microbatches import MAX_SHARES, MicroShare

TYPE = "AdjustMicrobatches"
DEFAULT_OVERHEAD_SECONDS = 1.0
KEPT = 2  # micro-batches of a rank, at least
TAKE_OVER_SECONDS = 30.0  # for the order's way, two steps, and the ranks' reports
TAKE_OVER_ITERATIONS = 8  # the same in a job of long iterations
NOT_USED = "the script does not use falcon_torch.MicroBatches"
NO_GAIN = "no other split would be faster"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A better split."""

    shares: list[int]  # by rank
    per_rank: int  # in the even split
    expected_ns: int  # iteration time
    slowest_ns: int  # what the slowest rank computes of it


class _Speeds(msgspec.Struct, frozen=True):
    """What the ranks take, in the order of their numbers, seconds."""

    per_rank: int  # in the even split
    shares: list[int]
    micro: Floats  # for a micro-batch: [ranks]
    fixed: Floats  # whatever their share is: [ranks]

    @classmethod
    def of(cls, obs: Observation, policy: Policy) -> _Speeds:
        ranks = sorted(obs.ranks, key=lambda rank: rank.rank)
        micros = [rank.sent.micro for rank in ranks if rank.sent.micro is not None]
        per_rank = micros[0].per_rank
        micro = np.array([micro.micro_ns or 0 for micro in micros], dtype=np.float64) / 1e9
        even = medians([rank.sent.compute_ns for rank in ranks], policy.consecutive) / 1e9  # as with the even shares
        return cls(per_rank, [micro.share for micro in micros], micro, np.maximum(0.0, even - per_rank * micro))


def hindrance(obs: Observation, policy: Policy) -> str:
    """Return why micro-batches cannot be moved now; "" if they can."""
    ranks = sorted(obs.ranks, key=lambda rank: rank.rank)
    said = [rank.sent.micro for rank in ranks]
    if not any(said):
        return NOT_USED
    if not 2 <= len(ranks) <= MAX_SHARES or len(ranks) != policy.world_size:
        return f"it works with 2 to {MAX_SHARES} ranks"
    words = (_words(rank) for rank in ranks)
    return next((word for word in words if word), "") or _unlike(ranks, policy)


def _words(rank: RankSeen) -> str:
    """Return what a rank itself has against it."""
    if rank.sent.micro is None:
        return f"rank {rank.rank} says nothing of its micro-batches"
    why = rank.sent.micro.hindrance
    return f"rank {rank.rank} says: {why}" if why else ""


def _unlike(ranks: Sequence[RankSeen], policy: Policy) -> str:
    """Return why the ranks' figures make no plan."""
    known = [rank.sent.micro for rank in ranks if rank.sent.micro is not None]
    per_rank = known[0].per_rank
    if any(micro.per_rank != per_rank for micro in known):
        return "the ranks do not have equally many micro-batches in the even split"
    if sum(micro.share for micro in known) != per_rank * len(known):
        return "the ranks are about to change their shares"
    if per_rank <= KEPT:
        return f"each rank has {per_rank} micro-batches in a step, and keeps {KEPT}"
    unknown = next((rank.rank for rank in ranks if not _is_measured(rank, policy)), None)
    return "" if unknown is None else f"it is not known yet what rank {unknown} takes for a micro-batch"


def _is_measured(rank: RankSeen, policy: Policy) -> bool:
    micro = rank.sent.micro
    return rank.fresh and len(rank.sent.compute_ns) >= policy.consecutive and micro is not None and bool(micro.micro_ns)


def plan(obs: Observation, policy: Policy) -> Plan | None:
    """Return the best split; None where the ranks have it already, all but noise.

    There is no ``hindrance``.
    """
    level = obs.iteration_ns(policy.consecutive)
    if level is None:
        return None
    speeds, more = _Speeds.of(obs, policy), KEPT - 1
    found = share_out(
        speeds.micro.tolist(),
        (speeds.per_rank - more) * len(speeds.shares),
        fixed_seconds=(speeds.fixed + more * speeds.micro).tolist(),
        current=[share - more for share in speeds.shares],
    )
    now_seconds = found.current_seconds
    if found.kept or now_seconds is None:
        return None
    gained_ns = (now_seconds - found.seconds) * 1e9
    if gained_ns < MIN_GAIN * level:
        return None
    return Plan(
        shares=[count + more for count in found.counts],
        per_rank=speeds.per_rank,
        expected_ns=round(level - gained_ns),
        slowest_ns=round(found.seconds * 1e9),
    )


def have(ranks: Sequence[RankSeen], shares: Sequence[int]) -> bool:
    """Check whether all ranks report these shares, by rank."""
    micros: list[MicroShare | None] = [rank.sent.micro for rank in sorted(ranks, key=lambda rank: rank.rank)]
    return [None if micro is None else micro.share for micro in micros] == list(shares)


def was_not_taken(waited_seconds: float, iteration_ns: int) -> str:
    """Return why the ranks count as not taking their shares over; "" while they still may."""
    patience = max(TAKE_OVER_SECONDS, TAKE_OVER_ITERATIONS * iteration_ns / 1e9)
    return f"the ranks did not take their shares over within {patience:.0f} s" if waited_seconds > patience else ""


def did_not_help(moved: Moved, after_ns: float, obs: Observation, policy: Policy) -> bool:
    """Check whether iterations are hardly shorter than before, though the ranks are as fast as planned."""
    if after_ns <= moved.before_ns * (1 - MIN_GAIN) or hindrance(obs, policy):
        return False
    speeds = _Speeds.of(obs, policy)
    slowest_ns = 1e9 * predict(speeds.shares, speeds.micro.tolist(), speeds.fixed.tolist())
    return slowest_ns <= moved.slowest_ns * (1 + policy.verify)
