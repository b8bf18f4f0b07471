"""A broken iteration is finished with the undisturbed sum of gradients, in both scenarios of Unicron §6.2."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.planning.errors import InfeasibleError, InvalidInputError
from falcon_core.planning.partial_iteration import Progress, Resumption, Scenario, SegmentState, resume

UNTOUCHED, IN_FLIGHT, REDUCED = SegmentState.UNTOUCHED, SegmentState.IN_FLIGHT, SegmentState.REDUCED
Gradient = npt.NDArray[np.int64]  # whole numbers: sums are equal to the last bit in any order
WIDTH = 3


class Batch:
    """Ranks that really accumulate: gradient[micro-batch][segment], and buffers as a failure leaves them."""

    def __init__(self, ranks: list[Progress], segments: list[str], seed: int) -> None:
        drawn = np.random.default_rng(seed)
        self.gradient = {
            number: {segment: drawn.integers(-1000, 1000, WIDTH) for segment in segments}
            for member in ranks
            for number in member.microbatches
        }
        self.whole = {
            segment: sum((self.gradient[number][segment] for number in self.gradient), np.zeros(WIDTH, np.int64))
            for segment in segments
        }
        self.buffers: dict[int, dict[str, Gradient]] = {
            member.rank: {segment: self._left_by_failure(member, segment, drawn) for segment in segments}
            for member in ranks
        }

    def _left_by_failure(self, member: Progress, segment: str, drawn: np.random.Generator) -> Gradient:
        match member.segments.get(segment, UNTOUCHED):
            case SegmentState.REDUCED:
                return self.whole[segment].copy()
            case SegmentState.IN_FLIGHT:
                return drawn.integers(-1000, 1000, WIDTH)  # part of a sum: of no use
            case _:
                return self._sum(member.microbatches[: member.finished], segment)

    def _sum(self, numbers: Iterable[int], segment: str) -> Gradient:
        total = np.zeros(WIDTH, np.int64)
        for number in numbers:
            total = total + self.gradient[number][segment]
        return total

    def carry_out(self, plan: Resumption, failed: set[int]) -> dict[str, list[Gradient]]:
        """Do what the plan says; return by segment what every survivor holds in the end."""
        left = {rank: buffers for rank, buffers in self.buffers.items() if rank not in failed}
        for rank, buffers in left.items():
            more = (*plan.own[rank], *plan.extra[rank])
            for segment in plan.add:
                buffers[segment] = buffers[segment] + self._sum(more, segment)
            for segment in plan.restart:
                buffers[segment] = self._sum((*more, *plan.again[rank]), segment)
        for segment, source in plan.copy_from.items():
            _give_all(left, segment, left[source][segment])
        for segment in (*plan.add, *plan.restart):
            _give_all(left, segment, sum((buffers[segment] for buffers in left.values()), np.zeros(WIDTH, np.int64)))
        return {segment: [buffers[segment] for buffers in left.values()] for segment in self.whole}


def _give_all(ranks: dict[int, dict[str, Gradient]], segment: str, gradient: Gradient) -> None:
    for buffers in ranks.values():
        buffers[segment] = gradient


@st.composite
def broken(draw: st.DrawFn) -> tuple[list[Progress], set[int], list[str]]:
    ranks = draw(st.integers(2, 5))
    segments = ["first", "middle", "last"][: draw(st.integers(1, 3))]
    reducing = draw(st.booleans())
    states = st.sampled_from([UNTOUCHED, IN_FLIGHT, REDUCED])
    number, progress = 0, []
    for rank in range(ranks):
        count = draw(st.integers(1, 4))
        progress.append(
            Progress(
                rank=rank,
                microbatches=tuple(range(number, number + count)),
                finished=count if reducing else draw(st.integers(0, count)),
                seconds_per_microbatch=draw(st.sampled_from([1.0, 1.0, 2.5])),
                segments={segment: draw(states) for segment in segments} if reducing else {},
            )
        )
        number += count
    failed = draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=ranks - 1))
    return progress, failed, segments


@settings(deadline=None, derandomize=True)
@given(broken(), st.integers(0, 2**31))
def test_every_survivor_ends_with_the_undisturbed_sum(
    case: tuple[list[Progress], set[int], list[str]], seed: int
) -> None:
    ranks, failed, segments = case
    batch, plan = Batch(ranks, segments, seed), resume(ranks, failed, segments)
    for segment, held in batch.carry_out(plan, failed).items():
        for survivor in held:
            np.testing.assert_array_equal(survivor, batch.whole[segment])


def rank(number: int, finished: int, **segments: SegmentState) -> Progress:
    return Progress(
        rank=number, microbatches=tuple(range(4 * number, 4 * number + 4)), finished=finished, segments=segments
    )


def test_scenario_1_the_failed_ranks_micro_batches_are_shared_out_evenly() -> None:
    """Check Unicron's eq. 7: k' = k + k/(DP − 1)."""
    plan = resume([rank(n, 2) for n in range(5)], {2}, ["all"])
    assert plan.scenario is Scenario.BEFORE_REDUCE
    assert plan.own == {n: (4 * n + 2, 4 * n + 3) for n in (0, 1, 3, 4)}
    assert sorted(number for extra in plan.extra.values() for number in extra) == [8, 9, 10, 11]
    assert {len(extra) for extra in plan.extra.values()} == {1}
    assert (plan.recomputed, plan.seconds) == (4, 3.0)


def test_scenario_1_who_is_ahead_takes_more() -> None:
    plan = resume([rank(0, 4), rank(1, 0), rank(2, 1)], {2}, ["all"])
    assert {rank: len(extra) for rank, extra in plan.extra.items()} == {0: 4, 1: 0}
    assert plan.seconds == 4.0


def test_scenario_2_what_was_reduced_is_not_computed_again() -> None:
    ranks = [rank(n, 4, early=REDUCED, late=UNTOUCHED) for n in range(3)]
    plan = resume(ranks, {1}, ["early", "late"])
    assert (plan.scenario, plan.keep, plan.add, plan.restart) == (Scenario.DURING_REDUCE, ("early",), ("late",), ())
    assert plan.recomputed == 4
    done = resume(ranks, {1}, ["early"])
    assert (done.scenario, done.recomputed, done.seconds) == (Scenario.NOTHING_LOST, 0, 0.0)


def test_scenario_2_one_survivor_with_the_sum_is_enough_and_a_half_reduced_buffer_is_not() -> None:
    ranks = [rank(0, 4, a=IN_FLIGHT, b=IN_FLIGHT), rank(1, 4, a=REDUCED, b=UNTOUCHED), rank(2, 4)]
    plan = resume(ranks, {2}, ["a", "b"])
    assert (plan.copy_from, plan.keep, plan.restart) == ({"a": 1}, ("a",), ("b",))
    assert plan.again == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
    assert plan.recomputed == 12


def test_degenerate_input_has_a_name() -> None:
    with pytest.raises(InfeasibleError):
        resume([rank(0, 1)], {0}, ["all"])
    with pytest.raises(InvalidInputError, match="unknown"):
        resume([rank(0, 1)], {7}, ["all"])
    with pytest.raises(InvalidInputError, match="still computes"):
        resume([rank(0, 3, all=REDUCED), rank(1, 4)], {1}, ["all"])
    with pytest.raises(InvalidInputError, match="finished 5"):
        resume([rank(0, 5)], set(), ["all"])
    with pytest.raises(InvalidInputError, match="two ranks"):
        resume([rank(0, 0), Progress(rank=1, microbatches=(0,))], {1}, ["all"])
    with pytest.raises(InvalidInputError, match="segments"):
        resume([rank(0, 1), rank(1, 1)], {1}, [])
