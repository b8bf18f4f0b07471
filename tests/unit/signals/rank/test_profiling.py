"""When every cycle of a rank is timed: from an onset on and from its relief on, for as long as what is compared."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.signals.changepoint.detector import Slowdown
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from falcon_core.signals.rank.profiling import Profile

C = 5
LENGTH = (JUDGEMENT.lasting_windows + 1) * C
SLOW = Slowdown(first_iteration=100, start_ns=0, reported_iteration=108, before_ns=1_000, after_ns=1_500)


def profiled(slowdowns: list[Slowdown | None], first: int = 1) -> list[int]:
    """Return the iterations of which every cycle is timed, where one after the other ends with these slowdowns."""
    profile = Profile()
    return [at for at, slowdown in enumerate(slowdowns, first) if profile.is_on(slowdown, at, C)]


def test_a_rank_that_is_well_is_never_profiled() -> None:
    assert profiled([None] * 1000) == []


def learning(learns: list[bool], first: int = 1) -> list[int]:
    """Return the iterations of which every cycle is timed while no slowdown is open."""
    profile = Profile()
    return [at for at, unknown in enumerate(learns, first) if profile.is_on(None, at, C, learns=unknown)]


def test_a_rank_is_profiled_until_its_healthy_computation_is_known() -> None:
    begins = 1 + SETTLED_ITERATIONS
    assert learning([True] * 70 + [False] * 500) == [*range(begins, 71)]
    assert learning([True] * 70 + [False] * 100 + [True] * 70, 400)[-1] == 639, "again under other calls"


def test_a_rank_whose_device_times_do_not_come_is_not_profiled_for_ever() -> None:
    assert len(learning([True] * 5_000)) == 64


def test_an_onset_and_its_relief_are_profiled_for_as_long_as_what_is_compared() -> None:
    found = profiled([None] * 108 + [SLOW] * 50 + [None] * 200)
    assert found == [*range(109, 109 + LENGTH), *range(159, 159 + LENGTH)]


def test_a_slowdown_that_lasts_is_profiled_again_in_a_tenth_of_the_cycles() -> None:
    found = profiled([SLOW] * 100 * LENGTH)
    assert len(found) == 10 * LENGTH
    assert found[LENGTH] == 1 + 10 * LENGTH


def test_a_slowdown_that_grows_is_profiled_at_once() -> None:
    grown = msgspec.structs.replace(SLOW, reported_iteration=150, after_ns=2_500)
    assert 151 in profiled([None] * 108 + [SLOW] * 42 + [grown] * 10)


def test_a_level_that_is_followed_is_the_same_slowdown() -> None:
    followed = [msgspec.structs.replace(SLOW, after_ns=1_500 + at) for at in range(5 * LENGTH)]
    assert len(profiled([None, *followed])) == LENGTH


def test_numbers_that_begin_anew_begin_a_profile() -> None:
    profile = Profile()
    assert profile.is_on(SLOW, 5_000, C)
    assert not profile.is_on(SLOW, 5_000 + LENGTH, C)
    assert profile.is_on(SLOW, 3, C), "another period was found: what was measured of the one before means nothing"


def test_a_quarter_of_the_cycles_is_timed_where_the_computation_scatters() -> None:
    profile = Profile()
    timed = [at for at in range(1, 1025) if profile.is_on(None, at, C, scatters=True)]
    assert len(timed) == 256
    assert max(later - at for at, later in pairwise(timed)) == 49
