"""The smoke test beside a restart: after which failures it is made, and which machines are sick by it."""

from __future__ import annotations

import msgspec
import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.model import Cause, Severity
from falcon_core.recovery.model.failure import Fault, StopIncident
from falcon_core.recovery.model.membership import Membership
from falcon_core.recovery.preflight.machine_test import Machine
from falcon_core.recovery.preflight.smoke_test import (
    HOLD_SECONDS,
    LATE_SECONDS,
    Smoke,
    begin_round,
    holds,
    is_due,
    sick,
    size_of,
    step,
)
from falcon_core.wire.measurement.check import CheckReport

JUDGE = shipped_judge()
replace = msgspec.structs.replace


def failure(cause: Cause = Cause.PROCESS_KILLED, *, error: str = "", error_class: str = "") -> StopIncident:
    fault = Fault(
        severity=Severity.SEV2,
        cause=cause,
        text="was killed",
        replica=1,
        pod_name="gpt2-1-a",
        node="node-b",
        error=error,
        error_class=error_class,
    )
    return StopIncident(id="gpt2-1", fault=fault, generation=1, iterations=50, since=100.0, detected_at=101.0)


@pytest.mark.parametrize(
    ("stop", "size"),
    [
        (None, "None"),
        (failure(), "Smoke"),
        (failure(Cause.HANG), "Smoke"),
        (failure(Cause.PROCESS_FAILED), "Smoke"),
        (replace(failure(Cause.PROCESS_FAILED), iterations=0), "None"),
        (failure(Cause.PROCESS_FAILED, error="ValueError"), "None"),
        (failure(Cause.OUT_OF_MEMORY), "None"),
        (replace(failure(), recurrences=1), "Full"),
        (replace(failure(error="ValueError"), recurrences=1), "None"),
    ],
    ids=[
        "no failure",
        "killed",
        "hang",
        "exit code",
        "early exit code",
        "own error",
        "memory",
        "came back",
        "own again",
    ],
)
def test_the_size_follows_from_the_failure(stop: StopIncident | None, size: str) -> None:
    assert size_of(stop, JUDGE) == size


def test_the_class_of_the_error_decides() -> None:
    """Evidence of hardware wants the full check, a peer's end any check, and what the program does wrong none."""
    sizes = {}
    for kind in JUDGE.table.classes:
        size = sizes[kind.name] = size_of(failure(Cause.PROCESS_FAILED, error_class=kind.name), JUDGE)
        if kind.blames_hardware:
            assert size == "Full", kind.name
        else:
            assert size == ("Smoke" if kind.consequence or kind.vague else "None"), kind.name
    assert set(sizes.values()) == {"None", "Smoke", "Full"}


def test_it_is_due_once_a_generation_and_only_while_it_is_gathered() -> None:
    stopped = Membership(generation=2, phase="Stop")
    assert is_due(Smoke(), failure(), stopped, JUDGE)
    assert not is_due(begin_round(Smoke(), 2, 100.0), failure(), stopped, JUDGE)
    assert is_due(begin_round(Smoke(), 2, 100.0), failure(), replace(stopped, generation=3), JUDGE)
    assert not is_due(Smoke(), failure(), replace(stopped, phase="Run"), JUDGE)
    assert not is_due(Smoke(), None, stopped, JUDGE)


def machines(*rates: float | None, number: int = 1, wrong: int | None = None) -> list[Machine]:
    """Return a machine for each rate; None: it has not answered. ``wrong``: that one computes wrongly."""
    return [
        Machine(
            replica=replica,
            pod_name=f"gpt2-{replica}-a",
            node=f"node-{replica}",
            report=None
            if rate is None
            else CheckReport(
                number,
                backend="falcon-launch",
                devices="1 × 8 CPUs",
                micros={"fp32": round(1e6 * rate)},
                problems=["its products are wrong"] if replica == wrong else [],
            ),
        )
        for replica, rate in enumerate(rates)
    ]


def after(*rounds: list[Machine]) -> Smoke:
    state = begin_round(Smoke(), 2, 100.0)
    for each in rounds:
        state = step(state, each, waits_since=100.0, now=100.3)
    return state


def test_equal_machines_are_tested_once() -> None:
    state = after(machines(1.0, 0.9, 1.1))
    assert (state.asked_at, state.number, sick(state)) == (0.0, 1, [])


def test_a_machine_is_sick_when_two_tests_in_a_row_say_so() -> None:
    state = after(machines(1.0, 0.2, 1.0))
    assert (state.number, state.rounds, sick(state)) == (2, 2, [])
    assert holds(state, 100.4)
    assert not holds(state, 100.4 + HOLD_SECONDS)
    state = step(state, machines(1.0, 0.2, 1.0, number=2), waits_since=100.0, now=100.6)
    (found,) = sick(state)
    assert (found.node, found.kind, found.ratio) == ("node-1", "fp32", 5.0)


@pytest.mark.parametrize("second", [(1.0, 1.0, 1.0), (0.2, 1.0, 1.0), (1.0, 0.6, 1.0)], ids=["none", "another", "less"])
def test_what_a_second_test_does_not_confirm_is_forgotten(second: tuple[float, ...]) -> None:
    state = after(machines(1.0, 0.2, 1.0), machines(*second, number=2))
    assert state.asked_at == 0
    assert sick(state) == []


def test_a_machine_at_more_than_half_of_its_peers_is_no_suspect() -> None:
    assert after(machines(1.0, 0.55, 1.0)).number == 1


def test_wrong_results_need_no_second_test() -> None:
    (found,) = sick(after(machines(1.0, 1.0, 1.0, wrong=2)))
    assert (found.node, found.kind, found.text) == ("node-2", "", "its products are wrong")


def test_two_machines_are_compared_with_each_other() -> None:
    (found,) = sick(after(machines(1.0, 0.1), machines(1.0, 0.1, number=2)))
    assert found.node == "node-1"


def test_the_answers_are_waited_for_but_not_for_ever() -> None:
    state = begin_round(Smoke(), 2, 100.0)
    partly = machines(1.0, None, 0.2)
    assert step(state, partly, waits_since=100.0, now=100.0 + LATE_SECONDS) == state
    assert step(state, partly, waits_since=None, now=100.0 + 10 * LATE_SECONDS) == state, "old processes still end"
    late = step(state, partly, waits_since=100.0, now=100.1 + LATE_SECONDS)
    assert [found.node for found in late.found] == ["node-2"]


def test_a_first_round_holds_nobody_up() -> None:
    assert not holds(begin_round(Smoke(), 2, 100.0), 100.0)
