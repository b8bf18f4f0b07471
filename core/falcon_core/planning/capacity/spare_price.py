"""Compute the shadow price of a spare: a node that dies after the spare was taken may find none.

A slow node is replaced by one of ``spares`` ready ones. Until the slow node is well and back, the pool is one short.
If so many nodes die meanwhile, the last of them finds no spare *because of this taking*, and the job stands still until
the slow node is back; with the spare untouched it would not have. Losses of nodes are Poisson with rate λ (of the whole
job, per second), the time until the slow node is back is exponential with mean τ. Which of the two comes next is then
a coin that never changes: λ/(λ + 1/τ) for a loss. All ``spares`` losses come first with that to the power of
``spares``, and what is left of τ is again τ:

    price [s] = τ · (λτ / (1 + λτ)) ^ spares

A second of standing still costs a second. Nodes that were lost before and are repaired meanwhile are not counted, nor
are other jobs that draw on the same pool: the first makes the price a little high, the second too low.

Both λ and τ are measured, from a prior on (Gamma, as in ``capacity.FailureRate``):

- λ: a tenth of a loss in 24 nodes' days, so one in 240: Llama 3's run lost a node in 310 nodes' days (356 in 54 days on
  2 048 nodes, arXiv 2407.21783 table 5), BLOOM one in 230 (one to two GPUs a week on about 50 nodes, TRANSOM's
  introduction), Unicron's trace-a one in 90 (10 SEV1 in 8 weeks on 16 nodes, §7.5). A tenth of a loss is
  little weight: a job that loses nodes faster is believed after the first or second.
- τ: FALCON's mean of a slowdown in large jobs, 72 minutes (§3.4), weighted as one return. Nodes that are still away
  count with the time that they have been (a censored exponential), so where slow nodes stay slow, τ grows. One node
  counts for at most ``MOST_BACK_SECONDS``, and τ is at most as long: a pool that is short for longer is refilled by
  other means than the return of a slow node. A node that was deleted does not count.
"""

from __future__ import annotations

import math

from falcon_core.planning.capacity.capacity import FailureRate
from falcon_core.planning.errors import InvalidInputError

PRIOR_LOSSES = 0.1
PRIOR_NODE_SECONDS = 24 * 86_400.0
PRIOR_BACK_SECONDS = 72 * 60.0
MOST_BACK_SECONDS = 86_400.0  # the longest probation of a node that is well again (``recovery.history.left_nodes``)


def loss_rate(*, lost: int, node_seconds: float, nodes: int) -> float:
    """Return λ: how many of a job's ``nodes`` die in a second, after ``lost`` have in ``node_seconds`` of watching.

    Raises InvalidInputError for negative input.
    """
    if min(lost, node_seconds, nodes) < 0:
        raise InvalidInputError("a count or a time is negative")
    if nodes == 0:
        return 0.0
    rate = FailureRate(
        failures=lost,
        worker_seconds=node_seconds,
        prior_failures=PRIOR_LOSSES,
        prior_worker_seconds=PRIOR_NODE_SECONDS,
    )
    return 1.0 / rate.running_seconds(nodes)


def back_seconds(*, returned: int, away_seconds: float) -> float:
    """Return τ: the mean time until a slow node is well and back [s], at most ``MOST_BACK_SECONDS``.

    So far ``returned`` nodes have come back, in ``away_seconds`` of all that were away.

    Raises InvalidInputError for negative input.
    """
    if min(returned, away_seconds) < 0:
        raise InvalidInputError("a count or a time is negative")
    return min(MOST_BACK_SECONDS, (PRIOR_BACK_SECONDS + away_seconds) / (1 + returned))


def price(spares: int, *, losses_per_second: float, back_seconds: float) -> float:
    """Return the shadow price of one of ``spares`` ready spares [s], as in the module's formula.

    Raises InvalidInputError for input that is negative or not finite.
    """
    if not (spares >= 0 and 0 <= losses_per_second < math.inf and 0 <= back_seconds < math.inf):
        raise InvalidInputError("a count, rate or time is negative or not finite")
    chance = losses_per_second * back_seconds / (1 + losses_per_second * back_seconds)
    return back_seconds * chance**spares
