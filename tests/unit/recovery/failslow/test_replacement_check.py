"""What came of a replacement: each is judged by the figures of its own rank."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery.model.events import Event, SlowClosed
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.recovery.model.state import Habits
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from tests.unit.recovery.failslow.test_incidents import LINK, RANKS, prepares, second, seen, step
from tests.unit.recovery.incidents import located, stay
from tests.unit.recovery.seen import MS, NOW, member, rank

CHECKING = located(phase="Checking", switched_at=NOW - 12, replaced_by="spare-2")
CHECKED = second(phase="Checking", switched_at=NOW - 12, replaced_by="spare-4")


def after(compute_ms: dict[int, int], iterations: int = 12, **fields: Any) -> Observation:
    """Return the next generation, whose agents take its level for healthy."""
    level_ms = 50 + max([200, *compute_ms.values()])
    ranks = [
        rank(
            number,
            iterations=iterations,
            iteration_ns=[level_ms * MS] * min(16, iterations),
            compute_ns=[compute_ms.get(number, 200) * MS] * min(16, iterations),
            healthy_iteration_ns=level_ms * MS,
            healthy_compute_ns=compute_ms.get(number, 200) * MS,
        )
        for number in range(RANKS)
    ]
    members = [member(number) for number in range(RANKS)]
    return seen(**{"members": members, "ranks": ranks, "generation": 2, "running_seconds": 8.0, **fields})


def outcomes(events: list[Event]) -> dict[str, str]:
    return {event.incident.id: event.outcome for event in events if isinstance(event, SlowClosed)}


def test_both_replacements_helped() -> None:
    taken = step(after({}), CHECKING, CHECKED)
    state = taken.state
    assert outcomes(taken.events) == {"gpt2-1": "Helped", "gpt2-2": "Helped"}
    costs = [action.cost_seconds for action in taken.events if isinstance(action, SlowClosed)]
    assert costs == [pytest.approx(9.0), None], "of one restart"
    assert (state.leader, state.further) == (None, [])


def test_each_replacement_is_judged_by_its_own_figures() -> None:
    taken = step(after({4: 500}), CHECKING, CHECKED)
    state = taken.state
    assert taken.is_empty, "it may yet come"
    assert state.leader is not None
    taken = step(after({4: 500}, 100, now=NOW + 70, running_seconds=78.0), state.leader, *state.further)
    assert outcomes(taken.events) == {"gpt2-1": "Helped", "gpt2-2": "NotHelped"}


def test_a_second_that_was_left_does_not_speak_against_the_first_replacement() -> None:
    taken = step(after({4: 500}), CHECKING, second())
    state = taken.state
    assert outcomes(taken.events) == {"gpt2-1": "Helped"}
    assert state.leader is not None
    assert (state.leader.id, state.leader.loss.seconds, state.further) == ("gpt2-2", 20.0, [])
    taken = step(after({4: 500}, SETTLED_ITERATIONS + 10), state.leader)
    state = taken.state
    assert state.leader is not None
    assert state.leader.loss.seconds == pytest.approx(20.0 + (SETTLED_ITERATIONS + 10) * 0.3), (
        "its loss goes on, in the new generation"
    )
    assert [action.replica for action in prepares(taken.commands)] == [4], (
        "by what it computed before: the agents know no more"
    )


def test_a_second_that_appears_during_the_check_does_not_speak_against_it_either() -> None:
    taken = step(after({4: 500}), CHECKING)
    assert outcomes(taken.events) == {"gpt2-1": "Helped"}


def test_a_replacement_whose_own_rank_is_slow_did_not_help() -> None:
    taken = step(after({2: 600}), CHECKING)
    state = taken.state
    assert taken.is_empty
    assert state.leader is not None
    taken = step(after({2: 600}, 100, now=NOW + 70, running_seconds=78.0), state.leader)
    assert outcomes(taken.events) == {"gpt2-1": "NotHelped"}


def test_a_job_that_is_slow_though_nobody_stands_out_was_not_helped() -> None:
    everybody = dict.fromkeys(range(RANKS), 400)
    state = step(after(everybody), CHECKING, CHECKED).state
    assert state.leader is not None
    taken = step(after(everybody, 100, now=NOW + 70, running_seconds=78.0), state.leader, *state.further)
    assert outcomes(taken.events) == {"gpt2-1": "NotHelped", "gpt2-2": "NotHelped"}


# -- slow on the new node as well ------------------------------------------------------------------------------------

SLOW_AGAIN: dict[str, Any] = {"iterations": 100, "now": NOW + 70, "running_seconds": 78.0}


def ranks_of(slowdowns: list[SlowIncident]) -> list[tuple[str, int | None]]:
    return [(slow.id, slow.culprit.rank if slow.culprit is not None else None) for slow in slowdowns]


def test_a_rank_that_is_slow_on_its_new_node_is_an_incident_of_its_own() -> None:
    members = [member(number, node="spare-2" if number == 2 else f"node-{number}") for number in range(RANKS)]
    taken = step(after({2: 500}, **SLOW_AGAIN, members=members), CHECKING)
    assert outcomes(taken.events) == {"gpt2-1": "NotHelped"}
    [slow] = taken.state.slowdowns
    assert slow.culprit is not None
    assert (slow.culprit.node, slow.culprit.healthy_compute_ns, slow.culprit.slowdown) == ("spare-2", 200 * MS, 2.5)
    assert slow.loss.seconds == pytest.approx(100 * 0.3)


def test_a_link_that_is_slow_at_the_same_time_does_not_look_for_the_rank_again() -> None:
    link = located(id="gpt2-0", phase="Detected", subject=LINK)
    taken = step(after({2: 500}, **SLOW_AGAIN), CHECKING, link)
    assert ranks_of(taken.state.slowdowns) == [("gpt2-3", 2), ("gpt2-0", None)]
    later = step(after({2: 500}, iterations=110, now=NOW + 75, running_seconds=83.0), *taken.state.slowdowns)
    named = [found for _, found in ranks_of(later.state.slowdowns) if found is not None]
    assert named == [2], "once"


def test_after_two_nodes_that_did_not_help_the_rank_is_not_followed() -> None:
    stays = [stay(2, 0, node=node, end="NotHelped", slowdown=2.5) for node in ("old", "older")]
    taken = step(after({2: 500}, **SLOW_AGAIN), CHECKING, habits=Habits(stays=stays))
    assert (outcomes(taken.events), taken.state.slowdowns) == ({"gpt2-1": "NotHelped"}, [])
