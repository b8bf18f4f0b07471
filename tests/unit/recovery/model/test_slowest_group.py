"""The job's iteration time where a group of ranks alone sets the pace."""

from __future__ import annotations

from falcon_core.recovery.model.observation import Observation
from falcon_core.wire.reporting.messages import Onset
from tests.unit.recovery.seen import MS, member, rank, replace, seen

ONSET = Onset(iteration=90, unix_ns=0, reported_iteration=95, before_ns=250 * MS, after_ns=400 * MS)


def _observed(*, is_fresh: bool) -> Observation:
    """Return a look at six ranks, two of which report an onset and long iterations, in new reports or in old ones."""
    fast = [rank(number, iterations=200, iteration_ns=[250 * MS] * 16) for number in range(4)]
    slow = [
        replace(rank(number, iterations=200, iteration_ns=[400 * MS] * 16, onset=ONSET), fresh=is_fresh)
        for number in (4, 5)
    ]
    return replace(seen(), members=[member(number) for number in range(6)], ranks=[*fast, *slow])


def test_the_slowest_groups_iterations_are_the_jobs() -> None:
    obs = _observed(is_fresh=True)
    assert obs.behind.tolist() == [4, 5]
    assert obs.iteration_ns(5) == 400 * MS
    assert obs.others_ns == 250 * MS


def test_ranks_of_a_pod_that_has_fallen_silent_set_no_pace() -> None:
    obs = _observed(is_fresh=False)
    assert obs.behind.tolist() == []
    assert obs.iteration_ns(5, fresh=True) == 250 * MS
    assert obs.others_ns is None
