"""Jobs in which a rank is slow and micro-batches can move, for the tests of S2."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Applied, SlowIncident
from falcon_core.recovery.model.treatments import Moved, Sharing
from falcon_core.recovery.strategies import adjust_microbatches
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.microbatches import MicroShare
from tests.unit.recovery.incidents import located
from tests.unit.recovery.seen import MS, NOW, POLICY, four_pods, rank, replace, seen

LADDER = replace(POLICY, strategies=[("Ignore", None), ("AdjustMicrobatches", None), ("ReplaceNode", 60.0)])
FIXED_MS = 20
S2 = adjust_microbatches.TYPE
MOVED = Moved(per_rank=4, share=2, most=5, before_ns=430 * MS, expected_ns=295 * MS, slowest_ns=245 * MS)
ORDERED = Sharing(generation=1, shares=[5, 5, 2], per_rank=4, at=NOW - 20, taken_iteration=80)


def job(
    micro_ms: tuple[int, ...] = (45, 45, 90), shares: tuple[int, ...] = (4, 4, 4), per_rank: int = 4, **rank: Any
) -> Observation:
    """Return a job in which a rank's micro-batch takes so long, as its agents report it: with the even share."""
    slowest = max(FIXED_MS + share * each for share, each in zip(shares, micro_ms, strict=True))
    found = seen(
        ranks={
            number: {
                "compute_ns": [(FIXED_MS + per_rank * each) * MS] * 16,
                "iteration_ns": [(slowest + 50) * MS] * 16,
                "micro": MicroShare(per_rank=per_rank, share=share, micro_ns=each * MS),
                **rank,
            }
            for number, (share, each) in enumerate(zip(shares, micro_ms, strict=True))
        }
    )
    return replace(found, ranks=found.ranks[: len(shares)])


def slow(**fields: Any) -> SlowIncident:
    """Return the incident of rank 2, of which nothing has come yet."""
    base = located()
    assert base.culprit is not None
    culprit = replace(base.culprit, slowdown=2.0, compute_ns=380 * MS)
    return replace(base, **{"slow_ns": 430 * MS, "culprit": culprit, "refreshed_at": 0.0, "applied": [], **fields})


def hybrid(
    compute_ms: Sequence[int],
    *,
    shares: Sequence[int] = (8, 8),
    per_rank: int = 8,
    iteration_ms: int,
    unmeasured: Collection[int] = (),
    **layout: int,
) -> tuple[Observation, Policy]:
    """Return a job of four pods with replicas of several ranks, which compute so long with the even share."""
    found = Parallelism(**{"data": 2, **layout})
    obs = four_pods(
        [
            rank(
                number,
                compute_ns=[each * MS] * (0 if number in unmeasured else 16),
                iteration_ns=[iteration_ms * MS] * 16,
                micro=MicroShare(per_rank=per_rank, share=shares[found.coordinates(number).data], timed=False),
            )
            for number, each in enumerate(compute_ms)
        ]
    )
    return obs, replace(LADDER, world_size=4, layout=found, stages=found.pipeline)


def applied(strategy: str) -> Applied:
    return Applied(strategy=strategy, at=NOW - 5, loss_seconds=0.0, overhead_seconds=0.0)
