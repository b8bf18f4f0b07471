"""The ladder for fail-slow: from an onset to a culprit, an action, and the proof that it helped."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.model import Cause
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery import mitigation_ladder
from falcon_core.recovery.mitigation import strategy_ladder
from falcon_core.recovery.model.actions import Prepare
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Look, Spares
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Applied, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.signals.changepoint.generation_level import Level
from falcon_core.signals.job.cause import CpuEvidence
from tests.unit.recovery.incidents import SETTLED, UNPRICED, incident, late_start, located, named, step
from tests.unit.recovery.seen import FAST, MS, NOW, ONSET, POLICY, SLOW, STRAGGLER, locate, replace, seen


def test_a_healthy_job_is_left_alone_and_its_health_is_remembered() -> None:
    taken = mitigation_ladder.step(RecoveryState(), Look(seen(), POLICY))
    state = taken.state
    assert (state.leader, taken.in_order(), state.levels.healthy_ns) == (None, [], 250 * MS)


def test_health_follows_improvements_and_drift_but_no_slow_start() -> None:
    faster = {number: {"healthy_iteration_ns": 200 * MS} for number in range(3)}
    assert step(seen(ranks=faster)).state.levels.healthy_ns == 200 * MS
    drift = {number: {"healthy_iteration_ns": 260 * MS} for number in range(3)}
    assert step(seen(ranks=drift)).state.levels.healthy_ns == 260 * MS
    slower = {number: {"healthy_iteration_ns": 400 * MS} for number in range(3)}
    assert step(seen(ranks=slower)).state.levels.healthy_ns == 250 * MS


def test_from_onset_to_culprit() -> None:
    taken = step(seen(ranks=STRAGGLER))
    state = taken.state
    assert (incident(state).phase, incident(state).id, taken.in_order()) == ("Suspected", "", [])
    assert incident(state).onset.iteration == 90
    taken = step(seen(ranks=STRAGGLER), state.leader)
    state = taken.state
    found = incident(state)
    assert (found.phase, found.id, taken.in_order()) == ("Located", "gpt2-1", [])
    assert found.culprit is not None
    assert (found.culprit.rank, found.culprit.node, found.culprit.slowdown) == (2, "node-2", 3.0)
    assert found.loss.seconds == pytest.approx(11 * 0.4), "iterations 90 … 100 at 650 instead of 250 ms"
    assert [applied.strategy for applied in found.applied] == ["Ignore"]


def test_one_long_iteration_is_lost_time_and_says_little_of_the_slowdown() -> None:
    state = step(seen(ranks=STRAGGLER)).state
    state = step(seen(ranks=STRAGGLER), state.leader).state
    before = incident(state)
    times = [*[650 * MS] * 15, 2000 * MS]
    longer = {number: {**fields, "iterations": 101, "iteration_ns": times} for number, fields in STRAGGLER.items()}
    longer[2]["compute_ns"] = [*[600 * MS] * 15, 1950 * MS]
    found = incident(step(seen(ranks=longer), before).state)
    assert found.times.slow_ns == before.times.slow_ns == 650 * MS
    assert found.loss.seconds - before.loss.seconds == pytest.approx(1.75)


def test_one_ranks_onset_is_not_the_jobs() -> None:
    assert step(seen(ranks={2: {**SLOW, "iteration_ns": [250 * MS] * 16}})).state.leader is None


def test_a_slowdown_without_a_culprit_passes_silently() -> None:
    everybody = dict.fromkeys(range(3), FAST)
    state = step(seen(ranks=everybody)).state
    taken = step(seen(ranks=everybody), state.leader)
    state = taken.state
    assert (incident(state).phase, taken.in_order()) == ("Suspected", [])
    taken = step(seen(), state.leader)
    state = taken.state
    assert (state.leader, state.incidents, state.levels.healthy_ns, taken.in_order()) == (None, 0, 250 * MS, [])


def test_slow_from_the_first_iteration_shows_against_earlier_generations() -> None:
    start = seen(ranks=late_start(2.6), generation=2)
    state = step(start, settled=SETTLED).state
    assert (incident(state).phase, incident(state).onset.iteration) == ("Suspected", 1)
    culprit = incident(step(start, state.leader, settled=SETTLED).state).culprit
    assert culprit is not None
    assert (culprit.rank, culprit.slowdown, culprit.healthy_compute_ns) == (2, 3.0, None), "against its peers"


@pytest.mark.parametrize(
    ("factor", "fields", "level"),
    [
        (2.6, {"iterations": 30}, SETTLED),
        (2.6, {"period_calls": 8}, SETTLED),
        (1.12, {"healthy_noise": 0.5}, SETTLED),
        (1.05, {}, SETTLED),
        (2.6, {}, None),
    ],
    ids=["still warming up", "other work", "noise explains it", "less than a tenth", "no settled generation before"],
)
def test_a_start_that_is_not_known_to_be_slow(factor: float, fields: dict[str, Any], level: Level | None) -> None:
    assert step(seen(ranks=late_start(factor, **fields), generation=2), settled=level).state.leader is None


@pytest.mark.parametrize(("generation", "iterations", "is_slow"), [(0, 60, True), (1, 60, False), (1, 100, True)])
def test_a_level_of_the_first_iterations_says_nothing_of_its_own_generation(
    generation: int, iterations: int, is_slow: bool
) -> None:
    level = replace(SETTLED, generation=generation, iterations=iterations)
    assert (step(seen(ranks=late_start(2.6)), settled=level).state.leader is not None) is is_slow


def test_a_level_is_learned_once_it_has_settled() -> None:
    def learned(iterations: int) -> Level | None:
        ranks = {number: {"iterations": iterations, "period_calls": 4} for number in range(3)}
        return mitigation_ladder.step(RecoveryState(), Look(seen(ranks=ranks), POLICY)).state.levels.settled

    assert learned(49) is None
    assert learned(50) == replace(SETTLED, noise=0.0, iterations=50, generation=1)


def test_the_node_is_replaced_when_the_loss_has_paid_for_it() -> None:
    poor = located(loss=Loss(seconds=12.9, generation=1, counted_iterations=100))
    assert step(seen(ranks=STRAGGLER), poor).is_empty
    rich = located(loss=Loss(seconds=13.0, generation=1, counted_iterations=100))
    taken = step(seen(ranks=STRAGGLER), rich)
    state = taken.state
    assert taken.in_order() == [Prepare(2, "rank 2 takes 3.0x its normal compute time", "gpt2-1")]
    assert (incident(state).phase, incident(state).applied[-1].loss_seconds) == ("Mitigating", 13.0)


def test_configured_and_learned_overheads() -> None:
    cheap = replace(POLICY, strategies=[("ReplaceNode", 4.0)])
    assert not step(seen(ranks=STRAGGLER), located(), cheap).is_empty
    assert step(seen(ranks=STRAGGLER), located(), cheap, overheads={"ReplaceNode": 9.0}).is_empty
    absent = replace(POLICY, strategies=[("Ignore", None), ("SwapNodes", None)])
    assert (
        step(
            seen(ranks=STRAGGLER), located(loss=Loss(seconds=99.0, generation=1, counted_iterations=100)), absent
        ).in_order()
        == []
    )


TRAINED = 100 * 0.25  # seconds of healthy work that ``seen`` has behind it


@pytest.mark.parametrize(
    ("policy", "redo"),
    [
        (UNPRICED, TRAINED),
        (replace(UNPRICED, checkpoint_interval_seconds=1800.0), TRAINED),
        (replace(UNPRICED, checkpoint_interval_seconds=10.0), 5.0),
    ],
    ids=[
        "not declared: all of the generation",
        "within the first interval: since its start",
        "later: half of an interval",
    ],
)
def test_a_replacement_also_costs_the_work_since_the_last_checkpoint(policy: Policy, redo: float) -> None:
    poor = located(loss=Loss(seconds=12.9 + redo, generation=1, counted_iterations=100))
    taken = step(seen(ranks=STRAGGLER), poor, policy)
    state = taken.state
    assert taken.is_empty
    price = strategy_ladder.next_step(state, Look(seen(ranks=STRAGGLER), policy))
    assert price is not None
    assert (price.overhead_seconds, price.redo_seconds) == (pytest.approx(13 + redo), pytest.approx(redo))
    rich = located(loss=Loss(seconds=13.1 + redo, generation=1, counted_iterations=100))
    taken = step(seen(ranks=STRAGGLER), rich, policy)
    state = taken.state
    assert not taken.is_empty
    assert incident(state).applied[-1].redo_seconds == pytest.approx(redo)


def test_a_short_measured_pause_does_not_replace_an_honest_configured_price() -> None:
    honest = replace(POLICY, strategies=[("Ignore", None), ("ReplaceNode", 900.0)])
    loss = Loss(seconds=899.0, generation=1, counted_iterations=100)
    assert step(seen(ranks=STRAGGLER), located(loss=loss), honest, overheads={"ReplaceNode": 12.0}).is_empty
    rich = located(loss=replace(loss, seconds=901.0))
    assert not step(seen(ranks=STRAGGLER), rich, honest, overheads={"ReplaceNode": 12.0}).is_empty
    assert step(seen(ranks=STRAGGLER), rich, honest, overheads={"ReplaceNode": 950.0}).is_empty, "a longer pause does"


def test_no_action_against_a_culprit_that_is_not_slow_right_now() -> None:
    rich = located(loss=Loss(seconds=50.0, generation=1, counted_iterations=100))
    flicker = {**STRAGGLER, 2: {**SLOW, "compute_ns": [600 * MS] * 14 + [230 * MS, 600 * MS]}}
    taken = step(seen(ranks=flicker), rich)
    state = taken.state
    assert taken.is_empty
    assert incident(state).phase == "Located"


def test_no_spare() -> None:
    rich = located(loss=Loss(seconds=50.0, generation=1, counted_iterations=100))
    none = Spares(pool="spares", available=False, message="WarmPool spares has no ready spare")
    taken = step(seen(ranks=STRAGGLER, spares=none), rich)
    state = taken.state
    assert taken.is_empty
    assert incident(state).blocked == "WarmPool spares has no ready spare"
    assert not step(seen(ranks=STRAGGLER), incident(state)).is_empty, "as soon as there is a spare"


def test_observe_writes_it_down_once() -> None:
    rich = located(loss=Loss(seconds=50.0, generation=1, counted_iterations=100))
    watching = replace(POLICY, enforce=False)
    taken = step(seen(ranks=STRAGGLER), rich, watching)
    state = taken.state
    assert taken.is_empty
    assert [(applied.strategy, applied.observed_only) for applied in incident(state).applied] == [
        ("Ignore", False),
        ("ReplaceNode", True),
    ]
    assert step(seen(ranks=STRAGGLER), incident(state), watching).state.leader == incident(state)


def test_a_mode_that_becomes_enforce_acts() -> None:
    noted = Applied(strategy="ReplaceNode", at=NOW, loss_seconds=13.0, overhead_seconds=13.0, observed_only=True)
    rich = located(loss=Loss(seconds=50.0, generation=1, counted_iterations=100), applied=[noted])
    assert step(seen(ranks=STRAGGLER), rich, replace(POLICY, enforce=False)).is_empty
    assert [type(action) for action in step(seen(ranks=STRAGGLER), rich).in_order()] == [Prepare]


def test_relief_is_judged_on_the_culprits_own_compute_time() -> None:
    healed = {number: {"onset": ONSET, "iteration_ns": [650 * MS] * 16} for number in range(3)}
    taken = step(seen(ranks=healed), located())
    state = taken.state
    (closed,) = taken.in_order()
    assert isinstance(closed, SlowClosed)
    assert (state.leader, closed.outcome) == (None, "Relieved")
    half = {**healed, 2: {**SLOW, "compute_ns": [250 * MS] * 16}}
    assert step(seen(ranks=half), located()).is_empty, "25 % slower is not relief"


@pytest.mark.parametrize(("iteration_ms", "over"), [(255, True), (270, False)])
def test_a_rank_that_still_computes_long_is_relieved_by_the_job_at_its_level_alone(
    iteration_ms: int, over: bool
) -> None:
    """Below 275 ms agents see no onset: iterations that are only just below it end nothing."""
    near = {number: {"onset": None, "iteration_ns": [iteration_ms * MS] * 16} for number in range(3)}
    near[2] |= {"compute_ns": [250 * MS] * 16}
    assert (step(seen(ranks=near), located()).state.leader is None) is over


def test_a_cause_is_reported_as_soon_as_it_shows_and_stands_until_another_cause_does() -> None:
    waits = CpuEvidence(throttled=0.0, run_delay=0.6, healthy_run_delay=0.1)
    stopped = CpuEvidence(throttled=0.7, healthy_throttled=0.0)
    unclear = CpuEvidence(throttled=0.0, run_delay=0.1, healthy_run_delay=0.1)

    def look(slow: SlowIncident, cpu: CpuEvidence, seconds: float) -> SlowIncident:
        obs = seen(ranks={**STRAGGLER, 2: {**SLOW, "cpu": cpu}}, now=NOW + seconds)
        return incident(step(obs, slow, replace(POLICY, strategies=[("Ignore", None)])).state)

    slow = look(located(), unclear, 0.5)
    assert named(slow).cause is Cause.UNKNOWN
    slow = look(slow, waits, 1.0)
    assert named(slow).cause is Cause.CPU_CONTENTION
    slow = look(slow, unclear, 5.0)
    assert (named(slow).cause, named(slow).cause_culprit) == (Cause.CPU_CONTENTION, 0.6)
    slow = look(slow, stopped, 5.5)
    assert named(slow).cause is Cause.CPU_CONTENTION, "figures are not taken anew at every look"
    slow = look(slow, stopped, 9.0)
    assert named(slow).cause is Cause.CPU_THROTTLING


MILD = replace(ONSET, after_ns=300 * MS)


def mild(last: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the ranks of a job that takes 50 ms more than 250 ms; ``last`` gives further fields of rank 2."""
    waits = {"iteration_ns": [300 * MS] * 16, "wait_ns": [55 * MS] * 16, "onset": MILD}
    return {0: waits, 1: waits, 2: {**waits, **last}}


def test_a_straggler_below_the_median_rules_factor_is_named_by_its_own_excess() -> None:
    ranks = mild({"compute_ns": [250 * MS] * 16, "wait_ns": [5 * MS] * 16})
    assert locate(seen(ranks=ranks), POLICY) is None, "1.25 x is below the median rule's 1.5"
    state = step(seen(ranks=ranks)).state
    state = step(seen(ranks=ranks), state.leader).state
    culprit = incident(state).culprit
    assert culprit is not None
    assert (culprit.rank, culprit.slowdown, culprit.peers_compute_ns) == (2, 1.25, 200 * MS)


@pytest.mark.parametrize(
    "last",
    [
        {"compute_ns": [250 * MS] * 8 + [200 * MS] * 8},
        {"compute_ns": [200 * MS] * 5 + [250 * MS] * 11},
        {"compute_ns": [250 * MS] * 14},
        {"compute_ns": [215 * MS] * 16},
        {"compute_ns": [250 * MS] * 16, "healthy_compute_ns": None},
    ],
    ids=[
        "no longer",
        "not yet in three windows",
        "fewer than three windows known",
        "explains a third of the loss",
        "no healthy level",
    ],
)
def test_an_own_excess_that_proves_nothing_names_nobody(last: dict[str, Any]) -> None:
    state = step(seen(ranks=mild(last))).state
    state = step(seen(ranks=mild(last)), state.leader).state
    assert incident(state).phase == "Suspected"


def test_more_work_for_everybody_is_nobodys_fault() -> None:
    ranks = {number: {**mild({})[0], "compute_ns": [250 * MS] * 16} for number in range(3)}
    state = step(seen(ranks=ranks)).state
    state = step(seen(ranks=ranks), state.leader).state
    assert incident(state).phase == "Suspected"
