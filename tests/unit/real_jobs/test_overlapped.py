"""Jobs whose calls run while ranks compute, as with DDP and FSDP, through the whole chain."""

from __future__ import annotations

import pytest

from evaluation.real_jobs import effects as does
from evaluation.real_jobs.outcome import Outcome
from evaluation.real_jobs.scene import Calls, Effect, Kind, Pattern
from tests.unit.real_jobs.playing import played

ONSET = 200
KINDS: tuple[Kind, ...] = ("overlapped DDP", "overlapped FSDP")
CALLS: tuple[Calls, ...] = ("Blocking", "Enqueued")


def _played(
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    calls: Calls,
    *,
    effects: tuple[Effect, ...] = (),
    faults: tuple[Effect, ...] = (),
) -> Outcome:
    pattern = Pattern(name="of a test", kind=kind, calls=calls, iterations=340, effects=effects, faults=faults)
    return played(monkeypatch, pattern, world=8, level="low", seed=1)


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("onset", [0, ONSET])
@pytest.mark.parametrize("factor", [1.4, pytest.param(2.0, marks=pytest.mark.slow)])
def test_a_slow_rank_is_named_alone_and_with_its_own_factor(
    monkeypatch: pytest.MonkeyPatch, factor: float, onset: int, kind: Kind, calls: Calls
) -> None:
    outcome = _played(monkeypatch, kind, calls, faults=(does.straggler(factor, onset),))
    [broken] = outcome.broken
    [incident] = [incident for incident in outcome.incidents if incident.nodes]
    assert incident.nodes.keys() == {broken.node}
    assert incident.slowdown == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("onset", [0, ONSET])
@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_a_slow_rank_of_few_layers_is_named_with_its_own_factor(
    monkeypatch: pytest.MonkeyPatch, factor: float, onset: int
) -> None:
    outcome = _played(monkeypatch, "shallow FSDP", "Blocking", faults=(does.straggler(factor, onset),))
    [incident] = [incident for incident in outcome.incidents if incident.nodes]
    assert incident.slowdown == pytest.approx(factor, rel=0.1)


def test_lighter_work_of_all_ranks_takes_nothing_from_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = _played(
        monkeypatch,
        "much communication",
        "Blocking",
        effects=(does.everybody(ONSET, 0.9),),
        faults=(does.straggler(2.0, ONSET),),
    )
    [incident] = [incident for incident in outcome.incidents if incident.nodes]
    assert incident.slowdown == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("kind", [*KINDS, "shallow FSDP"])
def test_a_rank_that_is_slower_by_nature_is_not_named(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, calls: Calls
) -> None:
    outcome = _played(monkeypatch, kind, calls, effects=(does.slower_by_nature(3, 1.04),))
    assert not outcome.incidents
