"""A job that changes by itself: what all ranks gain alike is no rank's fault, and a straggler is named all the same.

Each case is a series: the work of each rank by iteration, with the noise of ranks, through the agents' own detectors.
"""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery import mitigation_ladder
from falcon_core.recovery.diagnosis.job_change import at_level
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.signals.changepoint.generation_level import Level
from tests.seeds import seeds
from tests.unit.recovery.seen import MS, NOW, POLICY, differing, replace, seen
from tests.unit.recovery.series import Job, Times, only

SEEDS = seeds(2)
STEP = 200  # the iteration after which something changes
HEALTHY_MS = 250


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noise", [0.015, 0.04])
@pytest.mark.parametrize("factor", [1.2, 1.5, 3.0])
def test_everybody_slower_alike_is_reported_once_and_becomes_the_level(factor: float, noise: float, seed: int) -> None:
    job = Job(lambda iteration: factor if iteration > STEP else 1.0, noise=noise, seed=seed).run(600)
    (change,) = job.changes
    assert change.after_ns / change.before_ns == pytest.approx((200 * factor + 50) / HEALTHY_MS, rel=0.06)
    assert abs(change.iteration - STEP) <= 12
    assert (job.named, job.links, job.state.leader) == ([], None, None)
    healthy_ns = job.state.levels.healthy_ns
    assert healthy_ns is not None
    assert healthy_ns == pytest.approx(change.after_ns, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("transfers", [1.0, 1.3])
def test_transfers_that_grow_with_the_work_belong_to_the_change(transfers: float, seed: int) -> None:
    job = Job(
        lambda iteration: 1.3 if iteration > STEP else 1.0,
        lambda iteration: transfers if iteration > STEP else 1.0,
        seed=seed,
    ).run(500)
    assert len(job.changes) == 1
    assert (job.named, job.links, job.state.leader) == ([], None, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ramp_in_five_steps_is_no_incident(seed: int) -> None:
    job = Job(lambda iteration: 1.0 + 0.25 * min(5, max(0, (iteration - 1) // 100 - 1)), seed=seed).run(1000)
    assert 1 <= len(job.changes) <= 5
    assert (job.named, job.links, job.state.leader) == ([], None, None)
    assert job.state.levels.healthy_ns == pytest.approx((200 * 2.25 + 50) * 1e6, rel=0.07)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_that_gets_easier_again_is_back_at_its_level(seed: int) -> None:
    job = Job(lambda iteration: 1.5 if STEP < iteration <= 400 else 1.0, seed=seed).run(600)
    assert len(job.changes) == 1
    assert (job.named, job.state.leader, job.state.levels.change) == ([], None, None)
    assert job.state.levels.healthy_ns == pytest.approx(HEALTHY_MS * 1e6, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("noise", "common_noise"), [(0.015, 0.0), (0.04, 0.05)])
def test_a_phase_that_recurs_is_reported_once(noise: float, common_noise: float, seed: int) -> None:
    """Check a cold cache: everybody computes 1.4 × as long in the first 60 of each 300 iterations."""
    job = Job(
        lambda iteration: 1.4 if iteration > STEP and iteration % 300 < 60 else 1.0,
        noise=noise,
        common_noise=common_noise,
        seed=seed,
    ).run(1300)
    assert len(job.changes) == 1
    assert (job.named, job.state.leader) == ([], None)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_upload_each_hundred_iterations_is_nobodys_fault(seed: int) -> None:
    job = Job(lambda iteration: 1.25 if iteration > STEP and iteration % 100 < 12 else 1.0, seed=seed).run(1500)
    assert len(job.changes) <= 1
    assert (job.named, job.links, job.state.leader) == ([], None, None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("common", "later"), [(1.5, 300), (1.5, 20), (1.5, 0), (2.0, 300), (1.2, 300)])
def test_a_straggler_after_a_curriculum_step_is_named(common: float, later: int, seed: int) -> None:
    """Check a rank that computes 1.3 × as long, whether the job's new level is learned by then or not."""

    def work(iteration: int) -> float | Times:
        if iteration <= STEP:
            return 1.0
        return common * only(5, 1.3) if iteration > STEP + later else common

    job = Job(work, seed=seed).run(STEP + later + 120)
    assert [rank for rank, _ in job.named] == [5]
    ((_, iteration),) = job.named
    assert iteration <= STEP + later + 40
    culprit = job.state.leader.culprit if job.state.leader is not None else None
    assert culprit is not None
    assert culprit.slowdown == pytest.approx(1.3, rel=0.08), "against the group"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("common_noise", [0.0, 0.05])
def test_longer_batches_that_their_bytes_explain_are_a_change_of_the_job(common_noise: float, seed: int) -> None:
    """Check that a step of 1.25 and another of 1.3 on top are reported, and a straggler after them is named."""

    def load(iteration: int) -> float:
        return 1.0 if iteration <= STEP else 1.25 if iteration <= 500 else 1.25 * 1.3

    job = Job(
        lambda iteration: only(5, 1.4) if iteration > 800 else 1.0,
        shown="InBytes",
        load=load,
        common_noise=common_noise,
        seed=seed,
    )
    job.run(800)
    assert [change.before_ns < change.after_ns for change in job.changes] == [True, True]
    assert job.changes[0].after_ns / job.changes[0].before_ns == pytest.approx((250 + 50) / HEALTHY_MS, rel=0.06)
    assert (job.named, job.links, job.state.leader) == ([], None, None)
    job.run(80)
    assert [rank for rank, _ in job.named] == [5]


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_that_are_shorter_again_end_the_change(seed: int) -> None:
    job = Job(
        lambda iteration: 1.0,
        shown="InBytes",
        load=lambda iteration: 1.5 if STEP < iteration <= 400 else 1.0,
        seed=seed,
    ).run(600)
    assert len(job.changes) == 1
    assert (job.named, job.state.leader, job.state.levels.change) == ([], None, None)


def learned_anew(before: Level, **fields: Any) -> list[RecoveryState]:
    """Let ranks report that their agents have learned another level; return the states at 400 and 460 iterations."""
    state, states = RecoveryState(levels=Levels(settled=before, healthy_ns=before.iteration_ns)), []
    for iterations in (400, 430, 460):
        sent = {"iterations": iterations, "period_calls": 4, "healthy_iteration_ns": 320 * MS, **fields}
        ranks = {number: {"iteration_ns": [320 * MS] * 16, **sent} for number in range(3)}
        obs = seen(ranks=ranks, now=NOW + iterations / 4)
        state = mitigation_ladder.step(state, Look(obs, POLICY)).state
        states.append(state)
    return states


KNOWN = Level(
    iteration_ns=250 * MS, noise=0.02, iterations=400, world_size=3, period_calls=4, generation=1, size_class=9
)


@pytest.mark.parametrize("other", [{"size_class": 20}, {"period_calls": 6, "size_class": 9}])
def test_iterations_of_other_bytes_or_calls_are_a_change_that_has_lasted(other: dict[str, Any]) -> None:
    first, _, last = learned_anew(KNOWN, **other)
    assert (first.leader, first.levels.change, last.leader) == (None, None, None)
    assert last.levels.change is not None
    assert (last.levels.change.before_ns, last.levels.change.after_ns, last.levels.change.iteration) == (
        250 * MS,
        320 * MS,
        400,
    )
    assert last.levels.change.since == NOW + 100
    assert last.levels.healthy_ns == 320 * MS


def test_the_same_iterations_that_have_become_longer_are_a_slowdown() -> None:
    for same in (9, 10, 8):
        state = learned_anew(KNOWN, size_class=same)[-1]
        assert state.levels.change is None
        assert state.leader is not None


def test_another_generation_of_other_bytes_is_no_change_that_anybody_sees() -> None:
    state = learned_anew(replace(KNOWN, generation=0), size_class=20)[-1]
    assert (state.leader, state.levels.change) == (None, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_blip_after_a_change_costs_no_node(seed: int) -> None:
    """Check that what all gained has not paid for anybody: a rank is slow for 12 iterations, 0.8 s of loss."""

    def work(iteration: int) -> float | Times:
        if iteration <= STEP:
            return 1.0
        return 1.5 * only(3, 1.7) if 600 < iteration <= 612 else 1.5

    job = Job(work, seed=seed).run(700)
    assert (job.prepared, job.state.leader) == ([], None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_blip_during_a_slowdown_that_nobody_explains_costs_no_node(seed: int) -> None:
    """Check a network-wide fault: its loss belongs to no rank that is slow for a moment later."""

    def work(iteration: int) -> float | Times:
        return only(3, 1.7) if 900 < iteration <= 912 else 1.0

    job = Job(work, lambda iteration: 2.0 if iteration > STEP else 1.0, seed=seed, price_seconds=13.0).run(1000)
    assert job.prepared == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_network_wide_fault_is_no_change_of_the_job(seed: int) -> None:
    job = Job(lambda iteration: 1.0, lambda iteration: 2.0 if iteration > STEP else 1.0, seed=seed).run(500)
    assert job.changes == []
    assert job.state.leader is not None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("factor", "latest"), [(3.0, 12), (1.3, 24)])
def test_a_straggler_of_a_constant_job_is_named_as_soon_as_ever(factor: float, latest: int, seed: int) -> None:
    job = Job(lambda iteration: only(2, factor) if iteration > STEP else 1.0, seed=seed).run(500)
    ((rank, iteration),) = job.named
    assert (rank, job.changes) == (2, [])
    assert iteration <= STEP + latest
    ((replica, prepared_at),) = job.prepared
    assert replica == 2
    assert prepared_at <= STEP + 13_000 / (200 * (factor - 1)) + latest


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_link_is_named_as_soon_as_ever(seed: int) -> None:
    job = Job(lambda iteration: 1.0, lambda iteration: 3.0 if iteration > STEP else 1.0, seed=seed).run(300)
    assert job.changes == []
    assert job.links is not None
    assert job.links <= STEP + 24


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_the_ranks_are_not_all_of_them(seed: int) -> None:
    def work(iteration: int) -> float | Times:
        slow = only(0, 1.4)
        slow[:4] = 1.4
        return slow if iteration > STEP else 1.0

    assert Job(work, seed=seed).run(400).changes == []


@pytest.mark.parametrize("seed", SEEDS)
def test_one_stage_of_a_pipeline_is_not_the_whole_job(seed: int) -> None:
    def work(iteration: int) -> float | Times:
        slow = only(0, 1.4)
        slow[4:] = 1.4
        return slow if iteration > STEP else 1.0

    assert Job(work, stages=2, seed=seed).run(400).changes == []


@pytest.mark.parametrize("seed", SEEDS)
def test_stages_may_grow_by_different_amounts(seed: int) -> None:
    """Check that the attention's share of the work differs between a pipeline's stages."""

    def work(iteration: int) -> float | Times:
        longer = only(0, 1.6)
        longer[:4], longer[4:] = 1.4, 1.6
        return longer if iteration > STEP else 1.0

    job = Job(work, stages=2, seed=seed).run(500)
    assert len(job.changes) == 1
    assert (job.named, job.state.leader) == ([], None)


def changed() -> Job:
    return Job(lambda iteration: 1.5 if iteration > STEP else 1.0).run(300)


def healthy_ms(obs: Observation) -> list[int]:
    return [round((rank.sent.healthy_compute_ns or 0) / MS, -1) for rank in obs.ranks]


def test_reports_are_held_against_the_new_level_as_long_as_their_agents_know_the_old_one() -> None:
    job = changed()
    obs, change = job.observation(), job.state.levels.change
    assert healthy_ms(obs) == [200] * 8
    assert healthy_ms(at_level(Look(obs, job.policy), change)) == [300] * 8
    anew = differing(obs.ranks[0], healthy_iteration_ns=350 * MS, healthy_compute_ns=300 * MS)
    assert healthy_ms(at_level(Look(replace(obs, ranks=[anew, *obs.ranks[1:]]), job.policy), change)) == [300] * 8
    counted = [differing(rank, period_calls=8) for rank in obs.ranks]
    assert at_level(Look(replace(obs, ranks=counted), job.policy), change).ranks == counted, "another kind of iteration"
    assert at_level(Look(obs, replace(job.policy, stages=2)), change) is obs, "the pipeline was declared anew"


def test_the_next_generation_learns_the_level_by_itself() -> None:
    job = changed()
    ranks = [
        differing(rank, healthy_iteration_ns=350 * MS, healthy_compute_ns=300 * MS, onset=None)
        for rank in job.observation().ranks
    ]
    state = mitigation_ladder.step(
        job.state, Look(replace(job.observation(), generation=2, ranks=ranks), job.policy)
    ).state
    assert (state.levels.change, state.leader, state.levels.healthy_ns) == (None, None, 350 * MS)


def test_iterations_of_more_calls_have_another_healthy_time() -> None:
    """Check a batch that grows by micro-batches: the agents find another period, and learn anew."""
    job = Job(lambda iteration: 1.0).run(STEP)
    ranks = [
        differing(rank, period_calls=8, healthy_iteration_ns=500 * MS, iterations=60)
        for rank in job.observation().ranks
    ]
    state = mitigation_ladder.step(job.state, Look(replace(job.observation(), ranks=ranks), job.policy)).state
    assert state.levels.healthy_ns == 500 * MS


def test_within_one_node_nothing_tells_the_job_from_the_node() -> None:
    job = Job(lambda iteration: 1.5 if iteration > STEP else 1.0).run(STEP + 20)
    obs = job.observation()
    members = [replace(member, node="node-0") for member in obs.members]
    assert job.state.levels.change is not None
    before = next(look.state for look in reversed(job.looks) if look.state.levels.change is None)
    assert mitigation_ladder.step(before, Look(replace(obs, members=members), job.policy)).state.levels.change is None
    assert mitigation_ladder.step(before, Look(obs, job.policy)).state.levels.change is not None
