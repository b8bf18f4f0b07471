"""Jobs whose ranks wait for each other where no call is seen, through the whole chain."""

from __future__ import annotations

import pytest

from evaluation.real_jobs import effects as does
from evaluation.real_jobs.outcome import Outcome
from evaluation.real_jobs.scene import Effect, Kind, Pattern
from tests.unit.real_jobs.playing import played

ONSET = 200


def _played(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, effects: tuple[Effect, ...] = (), faults: tuple[Effect, ...] = ()
) -> Outcome:
    pattern = Pattern(name="of a test", kind=kind, iterations=330, effects=effects, faults=faults)
    return played(monkeypatch, pattern, world=8, level="low", seed=1)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("store barrier", 2.0),
        ("store barrier, slept", 2.0),
        ("store barrier, slept", 8.0),
        ("file lock", 12.0),
        ("file lock, slept", 12.0),
    ],
)
def test_the_rank_that_others_wait_for_unseen_is_named_alone(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, factor: float
) -> None:
    outcome = _played(monkeypatch, kind, faults=(does.straggler(factor, ONSET),))
    [broken] = outcome.broken
    [incident] = [incident for incident in outcome.incidents if incident.nodes]
    assert incident.nodes.keys() == {broken.node}


@pytest.mark.parametrize("seed", [2, 3, 8])
def test_a_rank_that_sleeps_in_a_queue_of_one_order_is_named_alone(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Check the fifth, the fourth and the second of eight ranks: those behind it are delayed by as much."""
    pattern = Pattern(
        name="of a test", kind="file lock in order, slept", iterations=330, faults=(does.straggler(12.0, ONSET),)
    )
    outcome = played(monkeypatch, pattern, world=8, level="low", seed=seed)
    [broken] = outcome.broken
    assert [incident.nodes.keys() for incident in outcome.incidents if incident.nodes] == [{broken.node}]
    assert all(taken.slow for taken in outcome.taken)


@pytest.mark.parametrize("kind", ["store barrier", "store barrier, slept"])
def test_no_rank_is_named_where_all_compute_longer_or_sleep(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    outcome = _played(monkeypatch, kind, effects=(does.everybody(ONSET, 2.5),))
    assert not any(incident.nodes for incident in outcome.incidents)


@pytest.mark.parametrize("kind", ["file lock, slept", "file lock in order, slept"])
def test_no_rank_is_named_where_all_sleep_behind_a_lock(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    outcome = _played(monkeypatch, kind, effects=(does.everybody(ONSET, 12.0),))
    assert not any(incident.nodes for incident in outcome.incidents)
