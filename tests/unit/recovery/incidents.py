"""Incidents of one slow rank, and a step of the ladder for fail-slow, for the tests of its parts."""

from __future__ import annotations

from typing import Any

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery import mitigation_ladder
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Applied, Culprit, IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.model.suspects import Stay
from falcon_core.signals.changepoint.generation_level import Level
from tests.unit.recovery.seen import FAST, MS, NOW, POLICY, SLOW, replace, seen

SETTLED = Level(iteration_ns=250 * MS, noise=0.02, iterations=400, world_size=3, period_calls=4)
UNPRICED = replace(POLICY, strategies=[("Ignore", None), ("ReplaceNode", None)])


def located(rank: int = 2, **fields: Any) -> SlowIncident:
    base = SlowIncident(
        id="gpt2-1",
        phase="Located",
        onset=SlowdownOnset(at=NOW - 6, generation=1, iteration=90, reported_iteration=95),
        times=IterationTimes(healthy_ns=250 * MS, slow_ns=650 * MS),
        loss=Loss(seconds=4.4, generation=1, counted_iterations=100),
        subject=Culprit(
            rank=rank,
            replica=rank,
            pod_name=f"gpt2-{rank}",
            node=f"node-{rank}",
            slowdown=3.0,
            compute_ns=600 * MS,
            healthy_compute_ns=200 * MS,
            peers_compute_ns=200 * MS,
        ),
        refreshed_at=NOW,
        applied=[Applied(strategy="Ignore", at=NOW - 5, loss_seconds=0.0, overhead_seconds=0.0)],
    )
    return replace(base, **fields)


def step(obs: Observation, slow: SlowIncident | None = None, policy: Policy = POLICY, **state: Any) -> Step:
    before = RecoveryState(levels=Levels(healthy_ns=250 * MS), slowdowns=[] if slow is None else [slow])
    return mitigation_ladder.step(replace(before, **state), Look(obs, policy))


def incident(state: RecoveryState) -> SlowIncident:
    assert state.leader is not None
    return state.leader


def named(slow: SlowIncident) -> Culprit:
    assert slow.culprit is not None
    return slow.culprit


def late_start(factor: float, **fields: Any) -> dict[int, dict[str, Any]]:
    """Return a generation whose rank 2 is slow from the first iteration, so that the slow pace seems healthy."""
    learned: dict[str, Any] = {
        "onset": None,
        "period_calls": 4,
        "healthy_noise": 0.02,
        "iteration_ns": [int(250 * factor) * MS] * 16,
        "healthy_iteration_ns": int(250 * factor) * MS,
        **fields,
    }
    quick = {**FAST, **learned, "healthy_compute_ns": 200 * MS}
    return {0: quick, 1: quick, 2: {**SLOW, **learned, "healthy_compute_ns": 600 * MS}}


CHECKING = located(phase="Checking", switched_at=NOW - 12, replaced_by="spare-1")


def after(level_ms: int, iterations: int, **fields: Any) -> Observation:
    ranks = {
        number: {"iterations": iterations, "iteration_ns": [level_ms * MS] * min(16, iterations)} for number in range(3)
    }
    return seen(ranks=ranks, generation=2, **{"running_seconds": 8.0, **fields})


def stay(replica: int, iterations: int, **fields: Any) -> Stay:
    base = Stay(
        replica=replica,
        node=f"node-{replica}",
        end="Passed",
        at=NOW - 60,
        generation=1,
        last=50,
        iterations=iterations,
    )
    return replace(base, **fields)
