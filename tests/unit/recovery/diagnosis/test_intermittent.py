"""A node that is slow in spells, each of which is too short to name anybody."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import pytest

from falcon_core.judgement import JUDGEMENT
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.diagnosis import intermittent
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from tests.unit.recovery.seen import MS, NOW, POLICY, member, rank, replace
from tests.unit.recovery.series import Job, only

EIGHT = replace(POLICY, world_size=8)
SPELL = 8  # iterations: one window, with an iteration before and after it


def spell(slow_ranks: Collection[int], last: int) -> tuple[SlowIncident, Observation]:
    """Return an incident and the look at its last iteration; these ranks compute 1.4 times as long."""
    times = [250 * MS] * (16 - SPELL) + [330 * MS] * SPELL
    own = [200 * MS] * (16 - SPELL) + [280 * MS] * SPELL
    obs = Observation(
        now=NOW + last * 0.25,
        generation=1,
        running=True,
        members=[member(number) for number in range(8)],
        ranks=[
            rank(number, iterations=last, iteration_ns=times, **({"compute_ns": own} if number in slow_ranks else {}))
            for number in range(8)
        ],
    )
    slow = SlowIncident(
        id="",
        phase="Detected",
        onset=SlowdownOnset(
            at=obs.now - SPELL * 0.33, generation=1, iteration=last - SPELL + 1, reported_iteration=last - 1
        ),
        times=IterationTimes(healthy_ns=250 * MS, slow_ns=330 * MS),
        loss=Loss(generation=1, counted_iterations=last),
    )
    return slow, obs


def named(spells: Sequence[Collection[int]], distances: Sequence[int]) -> list[int | None]:
    """Return who is named in each spell, which follow each other at these distances."""
    state, last = RecoveryState(), 100
    found: list[int | None] = []
    for slow_ranks, distance in zip(spells, distances, strict=True):
        slow, obs = spell(slow_ranks, last)
        state, stragglers = intermittent.look(state, slow, Look(obs, EIGHT))
        found.append(stragglers[0][0].rank if stragglers else None)
        last += distance
    return found


def test_a_rank_is_named_in_its_third_spell() -> None:
    assert named([{5}] * 5, [40, 70, 30, 90, 40]) == [None, None, 5, 5, 5]


def test_what_another_rank_or_the_whole_job_does_between_speaks_against_it() -> None:
    assert named([{5}, {5}, {2}, {5}, {5}, {5}], [40] * 6) == [None, None, None, None, None, 5]
    assert named([{5}, {5}, set(), {5}, {5}], [40] * 5) == [None, None, None, None, 5]
    assert named([{5}, {5}, {1, 5}, {5}, {5}], [40] * 5) == [None, None, None, None, 5]


def test_a_window_is_counted_once() -> None:
    state = RecoveryState()
    for _ in range(5):
        slow, obs = spell({5}, 100)
        state, found = intermittent.look(state, slow, Look(obs, EIGHT))
        assert found == []


def test_a_suspect_is_forgotten_after_a_window_of_quiet_time() -> None:
    quiet = round(EIGHT.window_seconds / 0.25) + 1
    assert named([{5}] * 4, [40, quiet, 40, 40]) == [None] * 4


def test_the_first_rank_is_not_named_for_what_it_does_at_equal_distances() -> None:
    assert named([{0}] * 8, [100, 101, 99, 100, 200, 100, 100, 100]) == [None] * 8
    assert named([{0}] * 4, [40, 70, 30, 90])[2:] == [0, 0]


@pytest.mark.parametrize("seed", range(100))
def test_who_is_named_stood_out_alone_in_most_windows_since_it_was_first_suspected(seed: int) -> None:
    """Check the bound of the docstring on random spells."""
    chance = random.Random(seed)
    kinds = chance.choices([{5}, set(), {2}, {2, 5}], weights=[chance.random() + 0.2 for _ in range(4)], k=60)
    found = named(kinds, [chance.randint(20, 90) for _ in kinds])
    for place, name in enumerate(found):
        row = kinds[max(0, place - JUDGEMENT.lasting_windows + 1) : place + 1]
        if len(row) == JUDGEMENT.lasting_windows and all(slow_ranks == {5} for slow_ranks in row):
            assert name == 5
        if name is None:
            continue
        assert kinds[place] == {name}
        since = [first for first in range(place + 1) if kinds[first] == {name}]
        shares = [kinds[first : place + 1].count({name}) / (place + 1 - first) for first in since]
        assert max(shares) > 0.5


@pytest.mark.parametrize(("noise", "common"), [(0.015, 0.0), (0.04, 0.05)])
def test_a_node_that_is_slow_for_a_dozen_iterations_again_and_again_is_replaced(noise: float, common: float) -> None:
    chance = random.Random(4)
    slow: set[int] = set()
    begin = 200
    while begin < 1500:
        lasting = chance.randint(8, 12)
        slow.update(range(begin, begin + lasting))
        begin += lasting + chance.randint(20, 40)
    job = Job(lambda iteration: only(3, 1.45) if iteration in slow else 1.0, noise=noise, common_noise=common).run(1500)
    assert {culprit for culprit, _ in job.named} == {3}
    assert [replica for replica, _ in job.prepared] == [3]


def test_slowness_that_goes_round_names_nobody() -> None:
    job = Job(lambda n: only(n // 45 * 3 % 8, 1.4) if n > 200 and n % 45 < 12 else 1.0).run(900)
    assert (job.named, job.prepared) == ([], [])
