"""A named rank's figures as they are taken anew."""

from __future__ import annotations

import pytest

from falcon_core.recovery.diagnosis.culprit_timing import with_newest_figures
from falcon_core.recovery.model.slowdown import Culprit
from tests.unit.recovery.incidents import located, named
from tests.unit.recovery.seen import MS, NOW, replace


@pytest.mark.parametrize("iteration", [1, 90])
def test_a_level_learned_in_a_slow_generation_is_no_healthy_one(iteration: int) -> None:
    """The agent of a rank that was slow from the start has taken 550 ms for healthy."""
    slow = located()
    against_peers = replace(named(slow), healthy_compute_ns=None)
    slow = replace(slow, subject=against_peers, onset=replace(slow.onset, iteration=iteration))
    learned = replace(against_peers, compute_ns=605 * MS, healthy_compute_ns=550 * MS, slowdown=1.1)
    found = with_newest_figures(slow, learned, NOW + 10).culprit
    assert isinstance(found, Culprit)
    seen = (found.healthy_compute_ns, found.slowdown)
    assert seen == ((None, 3.02) if iteration == 1 else (550 * MS, 1.1))
