"""Accounts of timelines: by hand for one incident, and what must hold for all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.planning.errors import InvalidInputError, InvalidSpeedError
from falcon_core.planning.goodput import Activity, Segment, account, cluster_waf, removed_slowdown


def segment(activity: Activity, start: float, end: float, **more: float) -> Segment:
    return Segment(activity=activity, start_seconds=start, end_seconds=end, workers=int(more.pop("workers", 8)), **more)


INCIDENT = [
    segment(Activity.TRAINING, 0, 100, iterations=100),
    segment(Activity.DETECTING, 100, 110, iterations=4),
    segment(Activity.SLOW, 110, 150, iterations=16),
    segment(Activity.RECOVERING, 150, 160, lost_iterations=10),
    segment(Activity.WAITING, 160, 180, workers=0),
    segment(Activity.TRAINING, 180, 200, iterations=20),
]


def test_an_incident_by_hand() -> None:
    found = account(
        INCIDENT, healthy_iteration_seconds=1.0, weight=2.0, flops_per_iteration=1e12, peak_flops_per_worker=5e11
    )
    assert (found.wall_seconds, found.unknown_seconds) == (200.0, 0.0)
    assert (found.useful_iterations, found.lost_iterations) == (130.0, 10.0)
    assert found.ettr == pytest.approx(0.65)
    assert found.running_ratio == pytest.approx((120 + 10 + 40) / 200)
    assert found.mfu == pytest.approx(130e12 / (5e11 * 8 * 180))
    assert found.waf_flops == pytest.approx(2 * 130e12)
    assert found.waf_flops_per_second == pytest.approx(2 * 130e12 / 200)
    assert found.seconds[Activity.WAITING] == 20.0
    assert cluster_waf([found, found]) == pytest.approx(4 * 130e12)


def test_what_is_not_known_is_none_and_not_zero() -> None:
    found = account(INCIDENT, healthy_iteration_seconds=1.0)
    assert (found.mfu, found.waf_flops, found.waf_flops_per_second) == (None, None, None)
    assert cluster_waf([found]) == 0.0


def test_a_hole_is_unknown_time_and_lowers_the_ratios() -> None:
    found = account(
        [segment(Activity.TRAINING, 0, 10, iterations=10), segment(Activity.TRAINING, 30, 40, iterations=10)],
        healthy_iteration_seconds=1.0,
    )
    assert (found.unknown_seconds, found.ettr, found.running_ratio) == (20.0, 0.5, 0.5)


def test_detecting_a_stand_still_does_not_count_as_running() -> None:
    found = account(
        [segment(Activity.TRAINING, 0, 10, iterations=10), segment(Activity.DETECTING, 10, 20)],
        healthy_iteration_seconds=1.0,
    )
    assert found.running_ratio == 0.5


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(Activity)), st.floats(0.1, 1e4), st.floats(0, 1), st.floats(0, 10)), min_size=1
    )
)
def test_the_parts_add_up_to_the_wall_time(parts: list[tuple[Activity, float, float, float]]) -> None:
    timeline, now = [], 0.0
    for activity, length, speed, hole in parts:
        now += hole
        timeline.append(segment(activity, now, now + length, iterations=length * speed))
        now += length
    found = account(timeline, healthy_iteration_seconds=1.0)
    assert math.fsum(found.seconds.values()) + found.unknown_seconds == pytest.approx(found.wall_seconds)
    assert 0 <= found.ettr <= 1 + 1e-9
    assert 0 <= found.running_ratio <= 1 + 1e-9


def test_the_removed_share_by_throughput_and_by_time() -> None:
    """Check the figures of FALCON §7: 17.1 → 14.8 → 16.2 iterations a minute."""
    assert removed_slowdown(17.1, 14.8, 16.2) == pytest.approx(0.609, abs=1e-3)
    assert removed_slowdown(60 / 17.1, 60 / 14.8, 60 / 16.2) == pytest.approx(0.643, abs=1e-3)
    with pytest.raises(InvalidInputError):
        removed_slowdown(1.0, 1.0, 1.0)


def test_degenerate_input_has_a_name() -> None:
    training = segment(Activity.TRAINING, 0, 10, iterations=10)
    for timeline in (
        [],
        [segment(Activity.TRAINING, 5, 5)],
        [training, segment(Activity.SLOW, 9, 12)],
        [segment(Activity.TRAINING, 5, 4)],
        [segment(Activity.TRAINING, 0, math.inf)],
        [segment(Activity.TRAINING, 0, 1, iterations=-1)],
        [training, segment(Activity.RECOVERING, 10, 11, lost_iterations=11)],
    ):
        with pytest.raises(InvalidInputError):
            account(timeline, healthy_iteration_seconds=1.0)
    for seconds in (0.0, math.inf, math.nan):
        with pytest.raises(InvalidSpeedError):
            account([training], healthy_iteration_seconds=seconds)
    with pytest.raises(InvalidSpeedError):
        account([training], healthy_iteration_seconds=1.0, flops_per_iteration=0.0)
