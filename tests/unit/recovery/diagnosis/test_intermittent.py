"""A node that is slow in spells, each of which is too short to name anybody."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import pytest

from falcon_core.judgement import JUDGEMENT
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.diagnosis import intermittent
from falcon_core.recovery.diagnosis.stragglers import culprit_of
from falcon_core.recovery.history import flapping, spell_share
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


def named_by_moves(slow_ranks: Sequence[int], *, quiet: float = 300.0) -> list[int | None]:
    """Return who is named in spells of two slow iterations, for which micro-batches are moved.

    ``quiet``: seconds between the spells.
    """
    state, last, now = RecoveryState(), 100, NOW
    found: list[int | None] = []
    for number in slow_ranks:
        slow, obs = spell({number}, last)
        short = [
            replace(
                each,
                iteration_ns=[250 * MS] * 14 + [330 * MS] * 2,
                compute_ns=[200 * MS] * 14 + ([280 * MS] * 2 if each.rank == number else [200 * MS] * 2),
            )
            for each in (one.sent for one in obs.ranks)
        ]
        obs = replace(obs, now=now, ranks=[replace(one, sent=sent) for one, sent in zip(obs.ranks, short, strict=True)])
        slow = replace(slow, onset_at=now - 0.7, onset_iteration=last - 1)
        flapped = flapping.slow_again(state, slow, Look(obs, EIGHT))
        state, stragglers = intermittent.at_move(state, slow, flapped, Look(obs, EIGHT))
        found.append(stragglers[0][0].rank if stragglers else None)
        node = intermittent.of_spell(state, slow)
        assert node == f"node-{number}"
        assert intermittent.is_known_by_a_move(state)
        state = spell_share.counted(state, node, slow, now, EIGHT, seconds=2.0)
        last, now = last + 40 + 7 * len(found), now + quiet
    return found


def test_a_node_that_flaps_is_named_by_two_iterations_for_which_micro_batches_move() -> None:
    assert named_by_moves([5] * 5) == [None, None, 5, 5, 5]
    assert named_by_moves([0] * 5)[:2] == [None, None]


def test_nodes_that_flap_in_turn_are_named_soon() -> None:
    assert named_by_moves([5, 2, 5, 2, 5, 2]) == [None, None, None, None, 5, 2]
    assert named_by_moves([5, 2, 7] * 4) == [None] * 9 + [5, 2, 7]


@pytest.mark.parametrize(("slow_ranks", "found"), [({5}, [5]), ({2, 5}, [])])
def test_a_known_node_is_not_named_by_its_spells_if_another_one_stands_out_too(
    slow_ranks: set[int], found: list[int]
) -> None:
    slow, obs = spell({5}, 100)
    state, _ = intermittent.at_move(RecoveryState(), slow, (), Look(obs, EIGHT))
    slow, obs = spell(slow_ranks, 140)
    _, stragglers = intermittent.at_move(state, slow, {"node-5"}, Look(obs, EIGHT))
    assert [straggler[0].rank for straggler in stragglers] == found


def test_a_window_that_was_counted_at_this_look_is_not_counted_again_for_the_move() -> None:
    slow, obs = spell({5}, 100)
    counted, _ = intermittent.look(RecoveryState(), slow, Look(obs, EIGHT))
    moved, _ = intermittent.at_move(counted, slow, (), Look(obs, EIGHT))
    assert moved == counted


def test_random_disturbances_name_no_rank() -> None:
    assert named_by_moves([5, 2, 7, 5, 2, 7, 5]) == [None] * 7
    assert named_by_moves([5, 3, 5, 1, 2, 7, 4, 5, 6]) == [None] * 9


def test_work_that_is_handed_over_while_micro_batches_move_names_no_rank() -> None:
    assert named_by_moves([5, 2] * 5, quiet=5.0) == [None] * 10


def test_moves_do_not_name_the_first_rank_because_its_node_is_remembered() -> None:
    assert named_by_moves([0, 2] * 4)[::2] == [None] * 4


def test_a_rank_that_does_not_stand_out_is_not_charged_with_a_move() -> None:
    slow, obs = spell((), 100)
    assert intermittent.at_move(RecoveryState(), slow, (), Look(obs, EIGHT)) == (RecoveryState(), [])


def test_healthy_iterations_before_a_spell_do_not_hide_how_slow_a_rank_is() -> None:
    state, last = RecoveryState(), 100
    for distance in (40, 70, 30):
        slow, obs = spell({5}, last)
        state, found = intermittent.look(state, slow, Look(obs, EIGHT))
        last += distance
    culprit = culprit_of(found, Look(obs, EIGHT), None)
    assert culprit is not None
    assert (culprit.healthy_compute_ns, culprit.slowdown) == (200 * MS, 1.4)


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
