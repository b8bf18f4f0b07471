"""Give the slow rank fewer micro-batches and the others more (strategy S2, FALCON §5.3). Nothing restarts.

It applies if a rank computes slowly and the script lets its micro-batches move (``falcon_torch.MicroBatches``). The
ranks report this, how many micro-batches they have, and what one takes. Micro-batches move between replicas of the
model, so all ranks of a replica (``spec.parallelism``) have the same share; without tensor and pipeline parallelism,
each rank is a replica. Each keeps two micro-batches: the last contains the exchange of gradients, and shows no time.

**The plan** is exact (``planning.microbatch``). A replica's time for m micro-batches is fixed + m · t. Where it is one
stage, t is its slowest rank's time of a micro-batch, and what that rank computes besides is fixed. In a pipeline
t_s is that time of stage s; a replica takes (m − 1) · max_s t_s + Σ_s t_s: t is that of the slowest stage, and the
filling by the others, Σ_s t_s − max_s t_s, is fixed. A schedule without overlap takes m · Σ_s t_s; the schedule is the
one of the two whose time is nearer to the iteration's. Where neither the script nor its calls time the passes, t is a
rank's computation in an iteration, as with the even share, ÷ its micro-batches there.

It takes no node and stops no rank, so it needs neither evidence against a node nor a spare. Its price is an estimate of
what the change costs: one second of loss prevents moves for mere noise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.planning.microbatch import MIN_GAIN, predict
from falcon_core.planning.microbatch import plan as share_out
from falcon_core.recovery.model.observation import Look, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.treatments import Moved
from falcon_core.recovery.strategies.strategy_type import StrategyType
from falcon_core.stats.medians import Floats, Ints, medians
from falcon_core.wire.reporting.microbatches import MAX_SHARES, MicroShare

TYPE: Final = "AdjustMicrobatches"
FACTS: Final = StrategyType(
    name=TYPE,
    explanation=(
        "AdjustMicrobatches gives a slow rank fewer micro-batches and the others more, where the script uses"
        " falcon_torch.MicroBatches; nothing restarts."
    ),
    default_seconds=1.0,
    act="micro-batches move to other ranks",
    would_act="micro-batches would move",
    would_have_acted="micro-batches would have been moved",
)
KEPT = 2  # micro-batches of a rank, at least
TAKE_OVER_SECONDS = 30.0  # for the order's way, two steps, and the ranks' reports
RETRY_SECONDS = 60.0  # after a first move that did not help; then twice as long each time
MOST_DOUBLINGS = 6
TAKE_OVER_ITERATIONS = 8  # the same in a job of long iterations
NOT_USED = "the script does not use falcon_torch.MicroBatches"
NO_GAIN = "no other split would be faster"
Flags = npt.NDArray[np.bool_]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A better split."""

    shares: list[int]  # by rank
    per_rank: int  # in the even split
    expected_ns: int  # iteration time
    slowest_ns: int  # what the slowest rank computes of it


class _Speeds(msgspec.Struct, frozen=True):
    """What the replicas of the model take, in the order of their numbers, seconds."""

    per_rank: int  # in the even split
    shares: list[int]
    micro: Floats  # for a micro-batch: [replicas]
    fixed: Floats  # whatever their share is: [replicas]

    @classmethod
    def of(cls, look: Look) -> _Speeds:
        """Take each stage of a replica by its slowest rank that is measured; there is no ``hindrance``."""
        shares, by_rank = _measured(look)
        overlap = _overlaps(by_rank, shares, look)
        return cls(by_rank.per_rank, shares, *by_rank.of_replicas(replicas(look.policy), overlap=overlap))

    @property
    def even_seconds(self) -> Floats:
        """Return what each replica takes with the even share [s]: [replicas]."""
        return self.fixed + self.per_rank * self.micro

    def seconds(self, shares: Sequence[int]) -> float:
        """Return the time of the slowest replica with these shares [s]."""
        return predict(shares, self.micro.tolist(), self.fixed.tolist())


class _ByRank(msgspec.Struct, frozen=True):
    """What the ranks take, in the order of their numbers, seconds."""

    per_rank: int  # in the even split
    micro: Floats  # for a micro-batch; -inf: not known: [ranks]
    fixed: Floats  # whatever their share is: [ranks]

    @classmethod
    def of(cls, ranks: Sequence[RankSeen], per_rank: int, policy: Policy) -> _ByRank:
        """Take what is measured. ``per_rank``: micro-batches in the even split."""
        measured = _are_measured(ranks, policy)
        micro, fixed = np.full(len(ranks), -np.inf), np.zeros(len(ranks))
        even = medians([rank.sent.compute_ns for rank in compress(ranks, measured)], policy.consecutive) / 1e9
        said = [rank.sent.micro for rank in ranks]
        passes = [np.nan if each is None or not each.timed else each.micro_ns or 0 for each in said]
        timed = np.array(passes)[measured] / 1e9
        micro[measured] = np.where(np.isnan(timed), even / per_rank, timed)
        fixed[measured] = np.maximum(0.0, even - per_rank * micro[measured])
        return cls(per_rank, micro, fixed)

    def of_replicas(self, table: Ints, *, overlap: bool) -> tuple[Floats, Floats]:
        """Return for each replica what a micro-batch takes, and what its share does not change: [replicas], twice.

        ``overlap``: the stages of a pipeline work at the same time.
        """
        of_stages = self.micro[table].max(axis=2)  # [replicas, stages]
        besides = self.fixed[table].max(axis=(1, 2))
        slowest, whole = of_stages.max(axis=1), of_stages.sum(axis=1)
        return (slowest, besides + whole - slowest) if overlap else (whole, besides)

    def seated(self, pods_of: Sequence[int], new: Collection[int], table: Ints) -> _ByRank:
        """Return what ranks take when their pods have other roles: a pod stays as slow as it was.

        ``pods_of``: for each replica of the job's pods, whose pod takes its role. ``new``: those that get a new pod,
        which is taken to be well.
        """
        ranks = np.arange(self.micro.size)
        of_pod = self.micro.size // len(pods_of)
        before = np.array(pods_of)[ranks // of_pod] * of_pod + ranks % of_pod
        usual, fixed = np.empty_like(self.micro), np.empty_like(self.micro)
        for stage in range(table.shape[1]):
            members = table[:, stage].ravel()
            known = members[np.isfinite(self.micro[members])]
            usual[members], fixed[members] = healthy_seconds(self.micro[known]), healthy_seconds(self.fixed[known])
        unknown = ~np.isfinite(self.micro[before]) | np.isin(ranks // of_pod, list(new))
        slowdown = np.where(unknown, 1.0, self.micro[before] / usual[before])
        longer = np.where(unknown, 0.0, self.fixed[before] - fixed[before])
        return _ByRank(self.per_rank, slowdown * usual, np.maximum(0.0, fixed + longer))


def _measured(look: Look) -> tuple[list[int], _ByRank]:
    """Return the replicas' present shares, and what the ranks take; there is no ``hindrance``."""
    ranks = sorted(look.obs.ranks, key=lambda rank: rank.rank)
    said = [rank.sent.micro for rank in ranks if rank.sent.micro is not None]
    shares = [said[first].share for first in replicas(look.policy)[:, 0, 0].tolist()]
    return shares, _ByRank.of(ranks, said[0].per_rank, look.policy)


def _overlaps(by_rank: _ByRank, shares: Sequence[int], look: Look) -> bool:
    """Check whether the stages work at the same time: whether the iteration's time is nearer to that."""
    level, table = (look.obs.iteration_ns(look.policy.consecutive) or 0.0) / 1e9, replicas(look.policy)
    overlapped, alternating = (
        float((fixed + np.array(shares) * micro).max())
        for micro, fixed in (by_rank.of_replicas(table, overlap=overlap) for overlap in (True, False))
    )
    return level - overlapped < alternating - level


def even_seconds(look: Look) -> Floats:
    """Return what each replica would take with the even share [s]: [replicas]. There is no ``hindrance``."""
    return _Speeds.of(look).even_seconds


def left_ns(look: Look) -> float:
    """Return the slowest replica's time with its present share, less a healthy one's with the even share [ns].

    So long iterations are because of slow ranks, after micro-batches were moved. There is no ``hindrance``.
    """
    speeds = _Speeds.of(look)
    slowest = speeds.seconds(speeds.shares)
    return 1e9 * max(0.0, slowest - healthy_seconds(speeds.even_seconds))


def healthy_seconds(times: Floats) -> float:
    """Return which of the replicas' times is healthy: the lower median; of two replicas, the faster one's."""
    return float(np.quantile(times, 0.5, method="lower"))


def replicas(policy: Policy) -> Ints:
    """Return the ranks of each stage of each replica of the model: [replicas, stages, ranks of a stage]."""
    layout = policy.layout
    if layout is None or layout.world != policy.world_size:
        return np.arange(policy.world_size).reshape(-1, 1, 1)
    return layout.replica_table()


def hindrance(look: Look) -> str:
    """Return why micro-batches cannot be moved now; "" if they can."""
    ranks = sorted(look.obs.ranks, key=lambda rank: rank.rank)
    said = [rank.sent.micro for rank in ranks]
    if not any(said):
        return NOT_USED
    if not 2 <= len(ranks) <= MAX_SHARES or len(ranks) != look.policy.world_size:
        return f"it works with 2 to {MAX_SHARES} ranks"
    if look.policy.layout is not None and look.policy.layout.expert > 1:
        return "replicas that share experts meet in each micro-batch"
    if look.policy.layout is not None and look.policy.layout.data < 2:
        return "the model has one replica only"
    words = (_words(rank) for rank in ranks)
    return next((word for word in words if word), "") or _unlike(ranks, look.policy)


def _words(rank: RankSeen) -> str:
    """Return the rank's own reason why its micro-batches cannot move; empty for none."""
    if rank.sent.micro is None:
        return f"rank {rank.rank} says nothing of its micro-batches"
    why = rank.sent.micro.hindrance
    return f"rank {rank.rank} says: {why}" if why else ""


def _unlike(ranks: Sequence[RankSeen], policy: Policy) -> str:
    """Return the reason why the ranks' figures allow no plan."""
    known = [rank.sent.micro for rank in ranks if rank.sent.micro is not None]
    per_rank, table = known[0].per_rank, replicas(policy)
    if any(micro.per_rank != per_rank for micro in known):
        return "the ranks do not have equally many micro-batches in the even split"
    # Ranks change at one step, but report it one after the other: a mixture must not become the base of a plan.
    shares = np.array([micro.share for micro in known])[table]
    if (shares != shares[:, :1, :1]).any() or shares[:, 0, 0].sum() != per_rank * len(table):
        return "the ranks are about to change their shares"
    if per_rank <= KEPT:
        return f"each rank has {per_rank} micro-batches in a step, and keeps {KEPT}"
    unknown = table[~_are_measured(ranks, policy)[table].any(axis=2)]
    return f"it is not known yet what rank {unknown.min()} takes for a micro-batch" if unknown.size else ""


def _are_measured(ranks: Sequence[RankSeen], policy: Policy) -> Flags:
    """Check for each rank whether its time of a micro-batch is known: [ranks]."""
    return np.fromiter((_is_measured(rank, policy) for rank in ranks), dtype=np.bool_, count=len(ranks))


def _is_measured(rank: RankSeen, policy: Policy) -> bool:
    micro = rank.sent.micro
    known = micro is not None and (bool(micro.micro_ns) or not micro.timed)
    return known and rank.fresh and len(rank.sent.compute_ns) >= policy.consecutive


def plan(look: Look, *, gives_back: bool = True) -> Plan | None:
    """Return the best split; None where the ranks have it already, all but noise.

    There is no ``hindrance``. ``gives_back``: whether who has fewer than in the even split may get some of them back.
    """
    level = look.obs.iteration_ns(look.policy.consecutive)
    return None if level is None else _planned(_Speeds.of(look), level, look.policy, gives_back=gives_back)


def plan_seated(
    look: Look, pods_of: Sequence[int], new: Collection[int], healthy_ns: float
) -> tuple[Plan | None, float]:
    """Return the best split of a generation in which pods have other roles, and its iteration time without it [ns].

    There is no ``hindrance``. ``pods_of``, ``new``: as of ``_ByRank.seated``. ``healthy_ns``: iteration time.
    """
    table, (shares, by_rank) = replicas(look.policy), _measured(look)
    overlap = _overlaps(by_rank, shares, look)
    seated = by_rank.seated(pods_of, new, table).of_replicas(table, overlap=overlap)
    then = _Speeds(by_rank.per_rank, [by_rank.per_rank] * len(table), *seated)
    times = then.even_seconds
    level = healthy_ns + 1e9 * (float(times.max()) - healthy_seconds(times))
    return _planned(then, level, look.policy, gives_back=True), level


def _planned(speeds: _Speeds, level_ns: float, policy: Policy, *, gives_back: bool) -> Plan | None:
    """Return the best split; None where it is hardly better. ``level_ns``: iteration time with the present one."""
    more = KEPT - 1
    found = share_out(
        speeds.micro.tolist(),
        (speeds.per_rank - more) * len(speeds.shares),
        fixed_seconds=(speeds.fixed + more * speeds.micro).tolist(),
        current=[share - more for share in speeds.shares],
    )
    now_seconds = found.current_seconds
    if found.kept or now_seconds is None:
        return None
    counts, seconds = np.array(found.counts) + more, found.seconds
    if not gives_back:
        counts = _without_returns(speeds, counts)
        seconds = speeds.seconds(counts.tolist())
    gained_ns = (now_seconds - seconds) * 1e9
    if gained_ns < MIN_GAIN * level_ns:
        return None
    table = replicas(policy)
    shares = np.empty(policy.world_size, dtype=np.int64)
    shares[table] = counts[:, np.newaxis, np.newaxis]
    return Plan(
        shares=shares.tolist(),
        per_rank=speeds.per_rank,
        # The newest passes may be slow already, and the iterations not yet.
        expected_ns=round(max(level_ns - gained_ns, seconds * 1e9)),
        slowest_ns=round(seconds * 1e9),
    )


def _without_returns(speeds: _Speeds, counts: Ints) -> Ints:
    """Return a split in which no replica with fewer than its even share gets more: [replicas].

    What the best split, ``counts``, would return goes to the rank that takes least with one more.
    """
    before = np.array(speeds.shares)
    fewer = before < speeds.per_rank
    kept = np.where(fewer, np.minimum(counts, before), counts)
    for _ in range(int(counts.sum() - kept.sum())):
        kept[np.where(fewer, np.inf, speeds.fixed + (kept + 1) * speeds.micro).argmin()] += 1
    return kept


def have(ranks: Sequence[RankSeen], shares: Sequence[int]) -> bool:
    """Check whether all ranks report these shares, by rank."""
    micros: list[MicroShare | None] = [rank.sent.micro for rank in sorted(ranks, key=lambda rank: rank.rank)]
    return [None if micro is None else micro.share for micro in micros] == list(shares)


def was_not_taken(waited_seconds: float, iteration_ns: int) -> str:
    """Return why the ranks count as not taking their shares over; "" while they still may."""
    patience = max(TAKE_OVER_SECONDS, TAKE_OVER_ITERATIONS * iteration_ns / 1e9)
    return f"the ranks did not take their shares over within {patience:.0f} s" if waited_seconds > patience else ""


def retry_seconds(failures: int) -> float:
    """Return the delay [s] from a failed move to the next: the first may have met a slowdown that still grew."""
    return RETRY_SECONDS * 2.0 ** min(failures - 1, MOST_DOUBLINGS)


def did_not_help(moved: Moved, after_ns: float, look: Look) -> bool:
    """Check whether iterations are hardly shorter than before, though the ranks are as fast as planned."""
    if after_ns <= moved.before_ns * (1 - MIN_GAIN) or hindrance(look):
        return False
    speeds = _Speeds.of(look)
    slowest_ns = 1e9 * speeds.seconds(speeds.shares)
    return slowest_ns <= moved.slowest_ns * (1 + look.policy.verify)
