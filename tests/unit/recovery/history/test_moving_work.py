"""Work that moves is reported once; what is larger, lasts longer, or speaks against a node is reported as before."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.model import Evidence
from falcon_core.recovery import mitigation_ladder
from falcon_core.recovery.history import moving_work, reporting_threshold
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.recovery.model.state import Habits, RecoveryState
from falcon_core.signals.job.cause import CpuEvidence
from falcon_core.wire.reporting.messages import Work
from falcon_core.wire.reporting.microbatches import MicroShare
from tests.seeds import seeds
from tests.unit.recovery.incidents import located, named, stay
from tests.unit.recovery.seen import FAST, MS, NOW, ONSET, POLICY, SLOW, STRAGGLER, replace, seen
from tests.unit.recovery.series import Job, Times, hot, only

FIRST, EVERY = 200, 160  # the first expert becomes hot, and for how long each stays hot
MOVED = FIRST + 3 * EVERY  # three have been hot by then


def after_moves(then: Times | float, **fields: float) -> Job:
    """Return a job in which three experts were hot in turn; ``then``: how long its ranks compute afterwards."""
    return Job(lambda iteration: hot(iteration) if iteration <= MOVED else then, shown="Hidden", **fields)


def named_after(job: Job) -> list[tuple[int, int]]:
    """Return the ranks that were named after the moves, and the iterations since then."""
    return [(rank, iteration - MOVED) for rank, iteration in job.named if iteration > MOVED]


@pytest.mark.parametrize("seed", seeds(3))
def test_a_hot_expert_that_moves_is_told_once(seed: int) -> None:
    job = Job(hot, seed=seed, shown="Hidden", noise=0.03).run(1200)
    assert [rank for rank, _ in job.named] == [0]
    ends = [look.iteration for look in job.looks if look.state.leader is not None and look.state.leader.is_incident]
    assert max(ends) <= FIRST + EVERY + 16, "no incident after the first has passed"
    assert len({known.replica for known in job.state.habits.stays}) >= 4, "but each is remembered"


@pytest.mark.parametrize("seed", seeds(3))
def test_a_rank_that_stays_slow_for_longer_than_work_does_is_named(seed: int) -> None:
    job = after_moves(only(5, 1.7), seed=seed).run(MOVED + 2 * EVERY)
    ((rank, since),) = named_after(job)
    assert rank == 5
    assert reporting_threshold.LONGER * EVERY / 2 <= since <= reporting_threshold.LONGER * EVERY + 8
    assert job.state.leader is not None
    assert job.state.leader.onset.iteration - MOVED <= job.policy.consecutive, "the loss counts from the onset"


@pytest.mark.parametrize("seed", seeds(3))
def test_a_rank_that_is_slower_than_the_others_were_is_named_at_once(seed: int) -> None:
    job = after_moves(only(5, 2.5), seed=seed).run(MOVED + 40)
    ((rank, since),) = named_after(job)
    assert (rank, since <= 24) == (5, True)


@pytest.mark.parametrize("seed", seeds(2))
def test_two_nodes_that_are_slow_alike_do_not_hide_each_other(seed: int) -> None:
    """Check two ranks of which noise makes now this one the slowest and now that one."""
    job = after_moves(only(2, 1.7) * only(5, 1.7), seed=seed).run(MOVED + 2 * EVERY)
    later = named_after(job)
    assert {rank for rank, _ in later} == {2, 5}
    assert max(since for _, since in later) <= reporting_threshold.LONGER * EVERY + 8


def test_a_rank_that_is_slower_by_nature_is_no_measure_for_others() -> None:
    """Check a stay whose size is a ratio to faster peers: a rank whose own healthy computation is known was faster."""
    stays = [stay(1, 500, slowdown=3.5, against_peers=True)]
    slow = replace(located(), id="", phase="Suspected", culprit=None, onset_iteration=1)
    state = RecoveryState(habits=Habits(stays=stays))
    culprit: Culprit = replace(named(located()), work=HIDDEN, slowdown=3.0)
    assert not moving_work.is_usual(state, slow, culprit, Look(OBS, POLICY))


def test_one_rank_of_unlike_workers_that_turns_slow_is_named_alone() -> None:
    """Check workers of which three have twice the work by nature, after work has moved among them."""
    nature = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0])

    def work(iteration: int) -> Times:
        return nature * (hot(iteration) if iteration <= MOVED else only(2, 4.0))

    job = Job(work, shown="Hidden").run(MOVED + 60)
    assert [rank for rank, _ in named_after(job)] == [2]
    named_ranks = {rank for rank, _ in job.named} | {
        rank for look in job.looks for slow in look.state.slowdowns if slow.culprit for rank in slow.culprit.also
    }
    assert named_ranks == {2, 6}, "each at the time when it computed longer than it used to"


@pytest.mark.parametrize("seed", seeds(3))
def test_spells_of_one_node_are_one_stay(seed: int) -> None:
    """Check a rank that flaps, after work has moved: none of its spells is as long as a move."""

    def work(iteration: int) -> Times:
        if iteration <= MOVED:
            return hot(iteration)
        return only(5, 1.7 if (iteration - MOVED) % 80 < 40 else 1.0)

    job = Job(work, shown="Hidden", seed=seed).run(MOVED + 3 * EVERY)
    later = named_after(job)
    assert [rank for rank, _ in later][:1] == [5]
    assert later[0][1] <= reporting_threshold.LONGER * EVERY + 80


def test_a_job_whose_slowness_lasts_though_nobody_stands_out_any_more_is_told() -> None:
    def work(iteration: int) -> Times:
        if iteration <= MOVED:
            return hot(iteration)
        return only(5, 1.7) if iteration <= MOVED + 40 else np.ones(8)

    job = Job(work, shown="Hidden", transfers=lambda iteration: 10.0 if iteration > MOVED else 1.0).run(MOVED + 400)
    assert job.state.leader is not None
    assert job.state.leader.is_incident


# -- at a single look ------------------------------------------------------------------------------------------------

HIDDEN: Work = "Hidden"


def usual(obs: Observation, policy: Policy = POLICY, *, slowdown: float = 2.6, **stayed: int) -> bool:
    """Return whether rank 2, which stands out, is as others were: for so many iterations, by the nodes' numbers."""
    culprit: Culprit = replace(named(located()), work=HIDDEN, slowdown=3.0)
    slow: SlowIncident = replace(located(), id="", phase="Suspected", culprit=None, onset_iteration=1)
    stays = [stay(int(node[1:]), iterations, slowdown=slowdown) for node, iterations in stayed.items()]
    return moving_work.is_usual(RecoveryState(habits=Habits(stays=stays)), slow, culprit, Look(obs, policy))


OBS = seen(ranks={0: FAST, 1: FAST, 2: {**SLOW, "work": HIDDEN}})  # 100 iterations


@pytest.mark.parametrize(
    ("stayed", "slowdown", "expected"),
    [
        ({}, 3.0, False),
        ({"n1": 67}, 3.0, True),
        ({"n1": 66}, 3.0, False),
        ({"n1": 67}, 2.7, False),
        ({"n1": 67, "n2": 60}, 3.0, False),
        ({"n2": 500}, 3.0, False),
    ],
    ids=["nothing before", "as long", "longer", "slower", "its second stay", "nowhere else"],
)
def test_what_is_usual(stayed: dict[str, int], slowdown: float, expected: bool) -> None:
    assert usual(OBS, slowdown=slowdown, **stayed) is expected


def test_what_speaks_against_the_node_is_not_usual() -> None:
    waits = {**STRAGGLER, 2: {**SLOW, "work": HIDDEN, "cpu": CpuEvidence(throttled=0.7, healthy_throttled=0.0)}}
    slow = replace(located(), id="", phase="Suspected", culprit=None, onset_iteration=1)
    culprit = replace(named(located()), work=HIDDEN, slowdown=3.0)
    state = RecoveryState(habits=Habits(stays=[stay(1, 500, slowdown=3.0)]))
    assert moving_work.is_usual(state, slow, culprit, Look(seen(ranks=waits), POLICY))
    throttled = replace(culprit, cause="Throttled")
    assert not moving_work.is_usual(state, slow, throttled, Look(seen(ranks=waits), POLICY))
    fixed = replace(culprit, work="Fixed")
    assert not moving_work.is_usual(state, slow, fixed, Look(OBS, POLICY)), Evidence.WAS_HEALTHY_HERE
    late = replace(OBS, now=NOW + reporting_threshold.MOST_SECONDS + 60)
    assert not moving_work.is_usual(state, slow, culprit, Look(late, POLICY)), "an hour"


def test_what_a_better_split_of_micro_batches_is_made_for_is_told() -> None:
    def with_micros(per_rank: int, policy: Policy) -> bool:
        micros = [
            MicroShare(per_rank=per_rank, share=per_rank, micro_ns=each.sent.compute_ns[-1] // per_rank)
            for each in OBS.ranks
        ]
        ranks = [
            replace(each, sent=replace(each.sent, micro=micro)) for each, micro in zip(OBS.ranks, micros, strict=True)
        ]
        return usual(replace(OBS, ranks=ranks), policy, slowdown=3.0, n1=67)

    shares = replace(POLICY, strategies=[*POLICY.strategies, ("AdjustMicrobatches", None)])
    assert not with_micros(8, shares)
    assert with_micros(8, POLICY), "the spec does not name it"
    assert with_micros(2, shares), "they cannot move"


def test_an_onset_that_is_dated_long_ago_is_no_incident_before_it_was_looked_for_the_rank() -> None:
    """Check a slow degradation: it has lasted for longer than an unexplained slowdown may when it is first seen."""
    gradual = replace(ONSET, iteration=5, unix_ns=int((NOW - 100) * 1e9))
    shared = {"onset": gradual, "iteration_ns": [450 * MS] * 16}
    slow = {**SLOW, **shared, "work": HIDDEN, "compute_ns": [400 * MS] * 16}
    obs = seen(ranks={0: {**FAST, **shared}, 1: {**FAST, **shared}, 2: slow})
    state = RecoveryState(habits=Habits(stays=[stay(1, 500, slowdown=3.0)]))
    for _ in range(2):
        state = mitigation_ladder.step(state, Look(obs, POLICY)).state
    assert state.leader is not None
    assert (state.leader.phase, state.leader.usual is not None) == ("Suspected", True)
