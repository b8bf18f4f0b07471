"""Ranks that say when they saved: a restart is priced by the work since then, and is cheapest right behind a save."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery.cost import prices
from falcon_core.recovery.failstop import hangs
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.recovery.repairs import restart_budget
from falcon_core.recovery.strategies import replace_node
from tests.unit.recovery.incidents import UNPRICED, located, step
from tests.unit.recovery.seen import NOW, POLICY, STRAGGLER, replace, seen

DECLARED = replace(UNPRICED, checkpoint_interval_seconds=10.0)
TRAINED = 100 * 0.25  # seconds of healthy work in the generation of ``seen``
ONSET_AGO = 6.0  # of ``located``, since which 250 ms of work take 650


def redo(**fields: Any) -> float:
    price = prices.replacement(RecoveryState(), located(), Look(seen(**fields), DECLARED))
    assert price is not None
    assert price.overhead_seconds == pytest.approx(replace_node.FACTS.default_seconds + price.redo_seconds)
    return price.redo_seconds


@pytest.mark.parametrize(
    ("ago", "work"),
    [
        (0.0, 0.0),
        (2.6, 1.0),  # saved in the slowdown, which makes 250 ms of work in 650
        (ONSET_AGO, ONSET_AGO / 2.6),
        (ONSET_AGO + 4.0, 4.0 + ONSET_AGO / 2.6),
        (1e6, TRAINED),  # by an earlier generation: this one began from it
        (-5.0, 0.0),  # by a node whose clock is ahead
    ],
)
def test_a_replacement_redoes_what_was_trained_since_the_newest_save(ago: float, work: float) -> None:
    assert redo(outlasting_at=NOW - ago) == pytest.approx(work)


def test_what_is_lost_with_the_pod_does_not_count_for_a_replacement() -> None:
    half_an_interval = 5.0
    assert redo(saved_at=NOW) == half_an_interval


def test_ranks_that_save_when_they_are_asked_redo_nothing() -> None:
    assert redo(saves=True) == 0.0


def test_a_node_is_left_right_behind_a_save() -> None:
    slow = located(loss=replace(located().loss, seconds=15.0))
    waiting = seen(ranks=STRAGGLER, outlasting_at=NOW - 20.0)
    assert step(waiting, slow, DECLARED).is_empty
    assert len(step(replace(waiting, outlasting_at=NOW - 1.0), slow, DECLARED).in_order()) == 1


def test_a_hang_costs_the_work_since_the_newest_save_in_the_same_pods() -> None:
    price = hangs.price(RecoveryState(levels=Levels(healthy_ns=250_000_000)), Look(seen(saved_at=NOW - 3.0), POLICY))
    assert price.redo_seconds == pytest.approx(3.0)
    assert price.seconds == pytest.approx(restart_budget.DEFAULT_OVERHEAD_SECONDS + 3.0)
