"""The table of repairs: the ladder does for each class what it says, and a row may bring a command of its own."""

from __future__ import annotations

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.table import ErrorClass, Source, shipped
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.model.actions import Command, GiveUp, Recreate, Replace, Restart
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import Look, Observation, Spares
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.repairs import repair_table
from falcon_core.recovery.repairs.repair import Repair
from tests.unit.errors.lines import corpus
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

CORPUS = corpus()


def line_of(kind: ErrorClass) -> str | None:
    """Return a line of the class that a rank may print; None where only a node says such lines."""
    classifier = shipped_judge().classifier
    lines = (line for name, line in CORPUS if name == kind.name)
    found = ((line, classifier.line(line, Source.OUTPUT)) for line in lines)
    return next((line for line, finding in found if finding is not None and finding.name == kind.name), None)


PRINTED = [(kind, line) for kind in shipped().classes if (line := line_of(kind)) is not None]


def failed(words: str, *, generation: int = 1) -> Observation:
    """Return a look at a job of one rank that ended with these words before its first iteration."""
    own = {**ended(exit_code=1, at=NOW - 0.5), "last_words": words, "iterations": 0}
    obs = seen(ranks={0: own}, generation=generation, now=NOW + generation)
    return replace(obs, ranks=obs.ranks[:1], members=obs.members[:1], spares=Spares(pool="spares", available=True))


@pytest.mark.parametrize(("kind", "line"), PRINTED, ids=[kind.name for kind, _ in PRINTED])
def test_the_ladder_does_what_the_table_says_of_a_class(kind: ErrorClass, line: str) -> None:
    repair = repair_table.repair_of(kind)
    obs = failed(line)
    taken = restart_ladder.step(RecoveryState(), Look(obs, POLICY))
    if repair.ends_job:
        assert [type(command) for command in taken.commands] == [GiveUp]
    else:
        assert taken.state.stop is not None
        stop = taken.state.stop
        assert taken.commands == [repair.command(obs, stop.fault, stop.id) or Restart()]
    assert [attempt.kind for attempt in taken.state.attempts] == ([repair.attempt] if repair.attempt else [])


def test_each_kind_of_repair_has_classes() -> None:
    found = {repair_table.repair_of(kind).name for kind, _ in PRINTED}
    assert found >= {"HopelessStart", "FaultyHardware", "PassingTrouble", "CountedRestart"}


def test_the_table_has_each_name_once_and_its_last_row_applies_to_all() -> None:
    names = [repair.name for repair in repair_table.REPAIRS]
    assert len(set(names)) == len(names)
    assert repair_table.REPAIRS[-1].ends_job, "a failure that no row answers must not be restarted for ever"


def test_each_command_against_a_failure_has_words_for_the_status() -> None:
    commands: list[Command] = [
        Restart(),
        Restart(rewinds=True),
        Recreate(0, stay=True),
        Replace(0, "broken", lost=False, node_not_ready=False),
    ]
    assert {repair_table.step_name(command) for command in commands} < set(repair_table.STEP_WORDS)


def test_a_row_may_bring_a_command_of_its_own_which_no_back_off_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(obs: Observation, fault: Fault, incident: str) -> Command:
        return Recreate(fault.replica, stay=True)

    own = Repair(
        name="NewPod",
        explanation="the pod is made again",
        applies=lambda failure: True,
        attempt="NewPod",
        command=again,
    )
    monkeypatch.setattr(repair_table, "REPAIRS", (own, *repair_table.REPAIRS))
    state = RecoveryState()
    for generation in (1, 2, 3):
        obs = failed("Killed by nothing that is known", generation=generation)
        taken = restart_ladder.step(replace(state, stop=None), Look(obs, POLICY))
        state = taken.state
        assert taken.commands == [Recreate(0, stay=True)]
    assert [attempt.kind for attempt in state.attempts] == ["NewPod"] * 3
    assert state.stop is not None
    assert [step.what for step in state.stop.done] == ["Recreate"]
