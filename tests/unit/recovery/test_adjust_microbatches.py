"""S2: when micro-batches may move, which split is best, and that neither a short iteration nor a restart deceives."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery import onsets, prices, sharing
from falcon_core.recovery.locate import no_longer_slow
from falcon_core.recovery.observation import Observation, Policy
from falcon_core.recovery.remembered import Moved, Sharing
from falcon_core.recovery.state import Applied, RecoveryState, SlowIncident, SlowLink
from falcon_core.recovery.strategies import adjust_microbatches
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.microbatches import MicroShare
from tests.unit.recovery.incidents import located
from tests.unit.recovery.seen import MS, NOW, POLICY, four_pods, rank, replace, seen

LADDER = replace(POLICY, strategies=[("Ignore", None), ("AdjustMicrobatches", None), ("ReplaceNode", 60.0)])
FIXED_MS = 20
S2 = adjust_microbatches.TYPE


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


MOVED = Moved(per_rank=4, share=2, most=5, before_ns=430 * MS, expected_ns=295 * MS, slowest_ns=245 * MS)
ORDERED = Sharing(generation=1, shares=[5, 5, 2], per_rank=4, at=NOW - 20, taken_iteration=80)


def best_ms(micro_ms: tuple[int, ...], per_rank: int) -> int:
    """Return the slowest rank's computation by the best of all splits that leave each rank two micro-batches."""
    most = per_rank * len(micro_ms)
    return min(
        max(FIXED_MS + share * each for share, each in zip(shares, micro_ms, strict=True))
        for shares in itertools.product(range(2, most), repeat=len(micro_ms))
        if sum(shares) == most
    )


@pytest.mark.parametrize("per_rank", [3, 4, 8])
@pytest.mark.parametrize("micro_ms", [(45, 45, 90), (45, 60, 135), (50, 50, 400), (90, 44, 45)])
def test_the_split_is_the_best_of_all(micro_ms: tuple[int, ...], per_rank: int) -> None:
    obs = job(micro_ms, shares=(per_rank,) * 3, per_rank=per_rank)
    found = adjust_microbatches.plan(obs, LADDER)
    assert found is not None
    assert sum(found.shares) == 3 * per_rank
    assert min(found.shares) >= 2
    slowest = max(FIXED_MS + share * each for share, each in zip(found.shares, micro_ms, strict=True))
    assert slowest == best_ms(micro_ms, per_rank)
    assert found.slowest_ns == pytest.approx(slowest * MS)
    assert found.expected_ns == pytest.approx((slowest + 50) * MS)


def test_noise_moves_nothing_and_a_split_that_is_best_stays() -> None:
    assert adjust_microbatches.plan(job((45, 46, 44)), LADDER) is None
    assert adjust_microbatches.plan(job((45, 45, 90), shares=(5, 5, 2)), LADDER) is None


# -- replicas of several ranks -----------------------------------------------------------------------------------------


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


def test_all_ranks_of_a_replica_get_its_share_and_the_filling_of_the_pipeline_does_not_depend_on_it() -> None:
    # Ranks 0 and 1 hold the first stage. Replica 0 takes 20 ms + m · 20 ms, replica 1 takes 10 ms + m · 10 ms.
    obs, policy = hybrid((160, 80, 80, 80), iteration_ms=170, pipeline=2)
    found = adjust_microbatches.plan(obs, policy)
    assert found is not None
    best = min(max(10 + 20 * own, 10 + 10 * (16 - own)) for own in range(2, 15))
    assert found.slowest_ns == pytest.approx(best * MS)
    assert found.shares == [5, 11, 5, 11]
    assert found.expected_ns == pytest.approx(best * MS)


def test_a_schedule_without_overlap_takes_all_stages_for_each_micro_batch() -> None:
    # 30 ms a micro-batch in replica 0, and 20 ms in replica 1: 240 and 160 ms of 8.
    obs, policy = hybrid((160, 80, 80, 80), iteration_ms=250, pipeline=2)
    found = adjust_microbatches.plan(obs, policy)
    assert found is not None
    best = min(max(30 * own, 20 * (16 - own)) for own in range(2, 15))
    assert found.slowest_ns == pytest.approx(best * MS)
    assert found.shares == [6, 10, 6, 10]


def test_a_replica_is_as_slow_as_its_slowest_tensor_rank_that_is_measured() -> None:
    obs, policy = hybrid((80, 160, 80, 80), iteration_ms=165, tensor=2, unmeasured=(0, 3))
    assert adjust_microbatches.hindrance(obs, policy) == ""
    found = adjust_microbatches.plan(obs, policy)
    assert found is not None
    assert found.shares == [5, 5, 11, 11]
    unknown, policy = hybrid((80, 160, 80, 80), iteration_ms=165, tensor=2, unmeasured=(2, 3))
    assert "what rank 2 takes" in adjust_microbatches.hindrance(unknown, policy)


@pytest.mark.parametrize(
    ("layout", "shares", "why"),
    [
        ({"data": 1, "pipeline": 4}, (8,), "the model has one replica only"),
        ({"data": 4, "expert": 2}, (8, 8, 8, 8), "replicas that share experts meet in each micro-batch"),
        ({"pipeline": 2}, (7, 8), "the ranks are about to change their shares"),
        ({"pipeline": 2}, (7, 9), ""),
    ],
)
def test_what_keeps_the_micro_batches_of_replicas_where_they_are(
    layout: dict[str, int], shares: tuple[int, ...], why: str
) -> None:
    obs, policy = hybrid((80,) * 4, iteration_ms=90, shares=shares, **layout)
    assert adjust_microbatches.hindrance(obs, policy) == why


def test_ranks_of_one_replica_with_different_shares_are_about_to_change() -> None:
    obs, policy = hybrid((80,) * 4, iteration_ms=90, pipeline=2)
    micros = [MicroShare(per_rank=8, share=share, timed=False) for share in (7, 9, 9, 7)]
    ranks = [replace(each, sent=replace(each.sent, micro=micro)) for each, micro in zip(obs.ranks, micros, strict=True)]
    assert "about to change" in adjust_microbatches.hindrance(replace(obs, ranks=ranks), policy)


SAID = MicroShare(per_rank=4, share=4, micro_ns=45 * MS)


@pytest.mark.parametrize(
    ("obs", "why"),
    [
        (seen(), "the script does not use falcon_torch.MicroBatches"),
        (seen(ranks={0: {"micro": SAID}}), "rank 1 says nothing of its micro-batches"),
        (job(micro=replace(SAID, hindrance="the model is on a GPU")), "rank 0 says: the model is on a GPU"),
        (job(micro=replace(SAID, micro_ns=None)), "it is not known yet what rank 0 takes for a micro-batch"),
        (job(fresh=False), "it is not known yet what rank 0 takes for a micro-batch"),
        (job(compute_ns=[]), "it is not known yet what rank 0 takes for a micro-batch"),
        (job(shares=(2, 2, 2), per_rank=2), "each rank has 2 micro-batches in a step, and keeps 2"),
        (job(shares=(5, 4, 4)), "the ranks are about to change their shares"),
        (job(), ""),
    ],
)
def test_it_applies_where_all_ranks_say_that_it_can(obs: Observation, why: str) -> None:
    assert adjust_microbatches.hindrance(obs, LADDER) == why


def test_the_ranks_have_to_have_equally_many_in_the_even_split() -> None:
    obs = job()
    other = replace(obs.ranks[2], sent=replace(obs.ranks[2].sent, micro=replace(SAID, per_rank=6)))
    obs = replace(obs, ranks=[*obs.ranks[:2], other])
    assert "equally many" in adjust_microbatches.hindrance(obs, LADDER)


def named(obs: Observation, policy: Policy = LADDER, **fields: Any) -> str:
    found = prices.next_candidate(RecoveryState(), slow(**fields), obs, policy)
    return "" if found is None else found.name


def applied(strategy: str) -> Applied:
    return Applied(strategy=strategy, at=NOW - 5, loss_seconds=0.0, overhead_seconds=0.0)


def test_the_ladder_passes_over_what_does_not_apply() -> None:
    ignored = [applied("Ignore")]
    assert named(job()) == "Ignore"
    assert named(job(), applied=ignored) == "AdjustMicrobatches"
    assert named(seen(), applied=ignored) == "ReplaceNode"
    assert named(job((45, 45, 46)), applied=ignored) == "ReplaceNode"
    assert named(job(), POLICY, applied=ignored) == "ReplaceNode"
    assert named(job(), applied=[*ignored, applied("AdjustMicrobatches")]) == "ReplaceNode"


def test_why_not_is_asked_of_a_spec_with_the_strategy_alone() -> None:
    assert prices.why_not_moved(slow(), seen(), LADDER) == adjust_microbatches.NOT_USED
    assert prices.why_not_moved(slow(), job((45, 45, 46)), LADDER) == adjust_microbatches.NO_GAIN
    assert prices.why_not_moved(slow(), job(), LADDER) == ""
    assert prices.why_not_moved(slow(), seen(), POLICY) == ""


@pytest.mark.parametrize(("times", "waited", "again"), [(1, 59, False), (1, 61, True), (2, 119, False), (2, 121, True)])
def test_what_failed_is_tried_again_after_longer_each_time(times: int, waited: float, again: bool) -> None:
    failed = replace(MOVED, failed="it did not make iterations shorter", failed_at=NOW - waited)
    done = [applied("Ignore"), *[applied("AdjustMicrobatches")] * times]
    assert named(job(), applied=done, moved=failed) == ("AdjustMicrobatches" if again else "ReplaceNode")
    assert named(job(), applied=done, moved=MOVED) == "ReplaceNode", "it has not failed"
    assert named(job((45, 45, 46)), applied=done, moved=failed) == "ReplaceNode", "no split is better"


def test_a_healthy_iteration_is_no_relief_while_other_ranks_compute_the_culprits_micro_batches() -> None:
    as_short_as_ever: dict[str, Any] = {"iteration_ns": [255 * MS] * 16}
    even, uneven = job(**as_short_as_ever), job(shares=(5, 5, 2), **as_short_as_ever)
    assert no_longer_slow(slow(), even, LADDER)
    assert not no_longer_slow(slow(), uneven, LADDER)
    assert not no_longer_slow(slow(moved=MOVED), even, LADDER), "its newest iterations may be of the shares before"
    well = job((45, 45, 45), shares=(5, 5, 2))
    assert no_longer_slow(slow(moved=MOVED), well, LADDER), "its own computation tells"


# -- what was asked for ------------------------------------------------------------------------------------------------


def after(obs: Observation, policy: Policy = LADDER, *, ordered: Sharing = ORDERED, **fields: Any) -> RecoveryState:
    state = RecoveryState(slow=slow(**{"moved": MOVED, **fields}), sharing=ordered)
    return sharing.step(state, obs, policy)


def shares(state: RecoveryState) -> list[int]:
    assert state.sharing is not None
    return state.sharing.shares


def what_came(state: RecoveryState) -> Moved:
    assert state.slow is not None
    assert state.slow.moved is not None
    return state.slow.moved


def test_an_order_is_stored_with_what_it_promises() -> None:
    state, incident = sharing.order(RecoveryState(), slow(), job(), LADDER)
    assert state.sharing == Sharing(generation=1, shares=[5, 5, 2], per_rank=4, at=NOW)
    assert incident.moved == MOVED


def test_a_slowdown_that_grows_until_the_shares_are_taken_over_is_judged_by_what_it_was_then() -> None:
    grown = job((45, 45, 120))  # 500 + 50 ms
    assert what_came(after(grown, ordered=replace(ORDERED, taken_iteration=0))).before_ns == 550 * MS
    assert what_came(after(job(), ordered=replace(ORDERED, taken_iteration=0))).before_ns == MOVED.before_ns


def test_what_came_of_it_is_measured_when_all_ranks_have_done_enough_since() -> None:
    obs = job(shares=(5, 5, 2))
    behind = replace(obs.ranks[0], sent=replace(obs.ranks[0].sent, iterations=89))
    assert what_came(after(replace(obs, ranks=[behind, *obs.ranks[1:]]))).after_ns == 0
    assert what_came(after(obs)).after_ns == 295 * MS
    assert shares(after(obs)) == [5, 5, 2]


def test_shares_that_do_not_help_are_taken_back_but_not_where_the_ranks_became_slower() -> None:
    long: dict[str, Any] = {"iteration_ns": [430 * MS] * 16}
    failed = after(job(shares=(5, 5, 2), **long))
    assert (shares(failed), what_came(failed).failed) == ([4, 4, 4], "it did not make iterations shorter")
    slower = after(job((45, 45, 180), shares=(5, 5, 2)))
    assert (shares(slower), what_came(slower).failed) == ([5, 5, 2], "")


def test_they_are_taken_back_where_nothing_is_slow_any_more_and_belong_to_a_generation() -> None:
    state = sharing.step(RecoveryState(sharing=ORDERED), job(shares=(5, 5, 2)), LADDER)
    assert shares(state) == [4, 4, 4]
    assert sharing.step(state, job(), LADDER) == state
    assert sharing.step(RecoveryState(sharing=ORDERED), replace(job(), generation=2), LADDER).sharing is None
    assert shares(after(job(shares=(5, 5, 2)), POLICY)) == [4, 4, 4], "the spec does not ask for it any more"


def test_a_plan_that_is_hardly_better_does_not_replace_the_one_in_force() -> None:
    measured = replace(MOVED, after_ns=295 * MS)
    old = replace(ORDERED, at=NOW - 100)
    assert shares(after(job((45, 45, 91), shares=(5, 5, 2)), ordered=old, moved=measured)) == [5, 5, 2]
    twice = job((40, 60, 60), shares=(5, 5, 2))
    assert shares(after(twice, ordered=old, moved=measured)) == [5, 4, 3], "the nearest of the best"
    assert shares(after(twice, ordered=replace(old, taken_iteration=93), moved=measured)) == [5, 5, 2], (
        "not measured yet"
    )
    assert shares(after(twice, ordered=replace(old, at=NOW - 50), moved=measured)) == [6, 4, 2], "rank 2 gets none back"
    worse = job((40, 90, 90), shares=(5, 5, 2))
    assert shares(after(worse, ordered=old, moved=measured)) == [6, 3, 3]
    assert shares(after(worse, ordered=replace(old, at=NOW - 50), moved=measured)) == [7, 3, 2], "nor here"
    dear = replace(LADDER, strategies=[("Ignore", None), ("AdjustMicrobatches", 60.0), ("ReplaceNode", 60.0)])
    assert shares(after(twice, dear, ordered=old, moved=measured)) == [5, 5, 2], "the old split has not cost that much"
    assert shares(after(twice, ordered=old, moved=measured, well_since=NOW - 1)) == [5, 5, 2], "it is about to end"


# -- without a name ----------------------------------------------------------------------------------------------------


def suspected(
    obs: Observation, loss: float = 1.5, policy: Policy = LADDER, sharing_before: Sharing | None = None, **fields: Any
) -> RecoveryState:
    """Return the state after a look at a slowdown that names nobody."""
    base = slow(culprit=None, phase="Suspected", loss=Loss(seconds=loss), onset_generation=1, onset_iteration=90)
    incident = replace(base, **fields)
    state, incident = sharing.on_suspicion(RecoveryState(sharing=sharing_before), incident, obs, policy)
    return replace(state, slow=incident)


def test_nobody_needs_a_name_before_micro_batches_are_moved() -> None:
    state = suspected(job())
    assert shares(state) == [5, 5, 2]
    assert state.slow is not None
    assert [applied.strategy for applied in state.slow.applied] == ["AdjustMicrobatches"]
    moved = what_came(state)
    assert (moved.share, moved.most) == (2, 5)
    again, _ = sharing.on_suspicion(state, state.slow, job(), LADDER)
    assert again == state, "once"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"loss": 0.9}, "it has not lost as much as that costs"),
        ({"onset_iteration": 97}, "the newest times are in part of before"),
        ({"link": SlowLink(ranks=[], members=2, comm="c", excess_ns=1, compute_growth=1.0)}, "it is a link"),
        ({"policy": replace(LADDER, enforce=False)}, "mode Observe"),
        ({"policy": POLICY}, "the spec does not name it"),
        ({"obs": job((45, 45, 46))}, "all are alike"),
        ({"obs": seen()}, "the script does not let them move"),
        ({"sharing_before": replace(ORDERED, shares=[4, 4, 4], at=NOW - 3)}, "the newest times are of other shares"),
        ({"sharing_before": replace(ORDERED, generation=0, at=NOW - 3)}, ""),
    ],
)
def test_what_keeps_a_suspicion_from_moving_any(change: dict[str, Any], why: str) -> None:
    state = suspected(**{"obs": job(), **change})
    assert state.slow is not None
    assert (state.slow.moved is None) == bool(why), why


@pytest.mark.parametrize(
    ("micro_ms", "moved", "left_ms"),
    [
        ((45, 45, 90), (5, 5, 2), 45),  # who has more takes 245 ms, and the healthy 200 ms with the even share
        ((45, 45, 45), (4, 4, 4), 0),
        ((45, 106), (6, 2), 90),  # of two replicas, the faster is healthy
        ((106, 45), (2, 6), 90),
    ],
)
def test_what_slow_ranks_cost_after_the_move(micro_ms: tuple[int, ...], moved: tuple[int, ...], left_ms: float) -> None:
    policy = replace(LADDER, world_size=len(micro_ms))
    assert adjust_microbatches.left_ns(job(micro_ms, shares=moved), policy) == pytest.approx(left_ms * MS)


def test_without_a_name_it_is_over_when_equal_shares_would_take_equally_long() -> None:
    uneven = (5, 5, 2)
    assert not sharing.replicas_are_alike(job(shares=uneven), LADDER)
    assert sharing.replicas_are_alike(job((45, 45, 47), shares=uneven), LADDER)
    assert not sharing.replicas_are_alike(job((45, 45, 45), shares=uneven, fresh=False), LADDER), "nothing is known"
    two = replace(LADDER, world_size=2)
    assert not sharing.replicas_are_alike(job((45, 51), shares=(5, 3)), two), "the faster of two is healthy"
    assert sharing.replicas_are_alike(job((45, 48), shares=(5, 3)), two)
    unnamed = {"culprit": None, "phase": "Suspected"}
    assert shares(after(job(shares=uneven), **unnamed)) == [5, 5, 2], "they stay while it is not over"
    failed = after(
        job(shares=uneven, iteration_ns=[430 * MS] * 16), ordered=replace(ORDERED, taken_iteration=80), **unnamed
    )
    assert what_came(failed).failed
    assert shares(failed) == [4, 4, 4]


@pytest.mark.parametrize(
    ("obs", "expected_ns"),
    [
        (job(iterations=12), True),
        (job(iterations=6), True),
        (job(iterations=5), False),  # its first iteration is among the newest
        (job(iterations=51), False),  # its agents have learned what is usual
        (job((45, 45, 47), iterations=12), False),  # alike
        (job(shares=(5, 5, 2), iterations=12), False),  # moved already
    ],
)
def test_a_generation_that_begins_with_unequal_replicas_is_slow_since_its_start(
    obs: Observation, expected_ns: bool
) -> None:
    known = RecoveryState(healthy_ns=210 * MS)
    assert sharing.since_start(known, obs, LADDER) == (210 * MS if expected_ns else None)
    assert sharing.since_start(known, obs, POLICY) is None, "the spec does not let them move"
    state = onsets.look(known, obs, LADDER)
    assert (state.slow is not None) == expected_ns
    assert state.slow is None or (state.slow.phase, state.slow.onset_iteration) == ("Suspected", 1)


def test_they_stay_moved_while_another_replica_is_slow() -> None:
    state, over = RecoveryState(sharing=ORDERED), slow(moved=MOVED, applied=[applied("Ignore"), applied(S2)])
    kept = sharing.kept(state, over, job((45, 90, 45), shares=(5, 5, 2)), LADDER).slow
    assert kept is not None
    assert (kept.phase, kept.id, kept.culprit, kept.moved) == ("Suspected", "", None, MOVED)
    assert [each.strategy for each in kept.applied] == [S2]
    alike, unlike = job((45, 45, 45), shares=(5, 5, 2)), job((45, 90, 45), shares=(5, 5, 2))
    assert sharing.kept(state, over, alike, LADDER) == state
    assert sharing.kept(state, slow(), unlike, LADDER) == state, "they were not moved against it"
    assert sharing.kept(RecoveryState(), over, unlike, LADDER) == RecoveryState(), "nothing is moved"
    open_still = replace(state, slow=slow())
    assert sharing.kept(open_still, over, unlike, LADDER) == open_still


def test_only_what_comes_again_soon_has_to_stay_well_for_longer() -> None:
    back = replace(ORDERED, shares=[4, 4, 4], moves=3)
    for ago, moves in ((30.0, 4), (sharing.APART_SECONDS + 1, 1)):
        state = RecoveryState(sharing=replace(back, at=NOW - ago))
        ordered, _ = sharing.order(state, slow(), job(), LADDER)
        assert ordered.sharing is not None
        assert ordered.sharing.moves == moves
