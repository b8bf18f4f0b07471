"""Remember the results of a pool's node tests, and choose what a new test is compared with.

A node of a pool is compared with its peers, which are nodes of the same kind of machine, and with itself: a pool of one
spare has no peers. A peer's newest score counts, also after the peer has been claimed or let go. A new machine of the
same name has another uid, and no history.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from falcon_operator.api.warmpool import NodeCheck, NodeChecks, SpareStatus, WarmPool
from falcon_operator.base.time_format import timestamp
from falcon_operator.intent.model.snapshot import BurnInResult

MOST_CHECKS = 5  # of a node; its newest score is kept besides
MOST_NODES = 256  # those that were tested last: with all else, the status stays below a megabyte
MESSAGE_LENGTH = 128
replace = msgspec.structs.replace


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What a test is compared with. ``gflops`` None: nothing."""

    gflops: float | None = None
    whose: str = "the median of its peers"
    own: bool = False  # the node's own, of another time: who used the machine's CPUs then and now may differ
    scores: dict[str, float] = {}  # of the peers' medians, by the name of the rate


def recorded(history: Sequence[NodeChecks], node: str, uid: str, result: BurnInResult, now: float) -> list[NodeChecks]:
    """Return the history with another test; what is beyond the limits is forgotten, the oldest first."""
    check = NodeCheck(
        at=timestamp(now),
        outcome=result.outcome,
        gflops="" if result.gflops is None else f"{result.gflops:.2f}",
        scores={name: f"{rate:.4g}" for name, rate in result.scores.items()},
        message=result.message[:MESSAGE_LENGTH],
    )
    known = next((entry.checks for entry in history if (entry.node, entry.uid) == (node, uid)), [])
    newest = [*known, check][-MOST_CHECKS:]
    # A series of failed tests must not push out the score that the node is compared with.
    passed = next((old for old in reversed(known) if old.outcome == "Passed"), None)
    if passed is not None and all(old.outcome != "Passed" for old in newest):
        newest = [passed, *newest]
    last = next((old for old in reversed(newest) if old.outcome == "Passed"), None)
    newest = [check if check is last else replace(check, scores={}) for check in newest]  # only these are compared with
    # An entry of the same name and another uid is of an earlier machine: it goes.
    others = [entry for entry in history if entry.node != node]
    return [*others, NodeChecks(node=node, uid=uid, checks=newest)][-MOST_NODES:]


def reference(
    pool: WarmPool,
    node: str,
    uid: str,
    *,
    unlike: Collection[str] = (),
    among: Collection[str] | None = None,
    least: int,
) -> Reference:
    """Return what a test of the node is compared with: the faster of its peers' median and its own best score.

    Args:
        uid: the node's; "" where it is not known.
        unlike: nodes that are known to be other machines.
        among: the peers are among these; None: anywhere in the pool.
        least: the number of peers that can say which node is slow.
    """
    known = [entry for entry in _newest(pool) if entry.node != node and entry.node not in unlike]
    peers = [entry for entry in known if among is None or entry.node in among]
    measured = [peer.gflops for peer in peers if peer.gflops is not None]
    # Of too few peers the median may itself be slow.
    median = statistics.median(measured) if len(measured) >= least else None
    rates = _medians([peer.scores for peer in peers], least)
    own = _own_best(pool, node, uid)
    if own is None or (median is not None and median >= float(own.gflops)):
        return Reference(gflops=median, scores=rates)
    return Reference(gflops=float(own.gflops), whose=f"itself at {own.at}", own=True, scores=rates)


class _Newest(NamedTuple):
    """A node's newest scores."""

    node: str
    gflops: float | None
    scores: dict[str, float]


def _newest(pool: WarmPool) -> list[_Newest]:
    """Return the newest scores of each node that is or was a spare."""
    passed = {entry.node: check for entry in pool.status.checks if (check := _passed(entry)) is not None}
    measured = {name: float(check.gflops) for name, check in passed.items() if check.gflops}
    measured |= {spare.node: score for spare in pool.status.spares if (score := gflops(spare)) is not None}
    return [
        _Newest(
            node=name,
            gflops=measured.get(name),
            scores={rate: float(value) for rate, value in passed[name].scores.items()} if name in passed else {},
        )
        for name in sorted({*passed, *measured})
    ]


def gflops(spare: SpareStatus) -> float | None:
    """Return what the spare's test measured, in GFLOP/s; None where it was not tested yet."""
    try:
        return float(spare.gemm_gflops) or None
    except ValueError:
        return None


def _passed(entry: NodeChecks) -> NodeCheck | None:
    return next((check for check in reversed(entry.checks) if check.outcome == "Passed"), None)


def _own_best(pool: WarmPool, node: str, uid: str) -> NodeCheck | None:
    """Return the fastest of a node's tests: a slow decline never becomes what is usual."""
    checks = [check for entry in pool.status.checks if (entry.node, entry.uid) == (node, uid) for check in entry.checks]
    passed = [check for check in checks if check.outcome == "Passed" and check.gflops]
    return max(passed, key=lambda check: float(check.gflops), default=None) if uid else None


def _medians(scores: Sequence[dict[str, float]], least: int) -> dict[str, float]:
    """Return the median of each rate that enough of the peers have."""
    rates: dict[str, list[float]] = {}
    for known in scores:
        for name, rate in known.items():
            rates.setdefault(name, []).append(rate)
    return {name: statistics.median(values) for name, values in rates.items() if len(values) >= least}
