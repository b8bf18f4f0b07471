"""A named rank's figures as they are taken anew."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery.diagnosis.culprit_timing import with_newest_figures
from falcon_core.recovery.diagnosis.stragglers import no_longer_slow
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import Culprit
from tests.unit.recovery.incidents import located, named
from tests.unit.recovery.seen import FAST, MS, NOW, POLICY, replace, seen


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


@pytest.mark.parametrize(
    ("long", "held", "well"), [(1, True, True), (3, True, False), (1, False, False), (0, False, True)]
)
def test_a_rank_that_has_been_well_is_not_slow_again_for_a_single_long_iteration(
    long: int, held: bool, well: bool
) -> None:
    """A rank of a busy machine has such an iteration every few seconds, and micro-batches wait for half a minute."""
    computed = [200 * MS] * (16 - long) + [300 * MS] * long
    ranks: dict[int, dict[str, Any]] = {
        number: {**FAST, "compute_ns": computed if number == 2 else [200 * MS] * 16, "iteration_ns": [400 * MS] * 16}
        for number in range(3)
    }
    slow = located(well_since=NOW - 10 if held else None)
    assert no_longer_slow(slow, Look(seen(ranks=ranks), POLICY)) == well
