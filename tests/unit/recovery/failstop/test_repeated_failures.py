"""A failure that comes again after each restart, however long that takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from falcon_core.model import Cause, Severity
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.failstop.repeated_failures import remembered, repeated
from falcon_core.recovery.model.actions import GiveUp, Restart
from falcon_core.recovery.model.failure import Fault, Repeat
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy, Repeated
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

BAD_ROW = "ValueError: row 8812 has 3 columns (data.py:40 in rows)"
PEER_GONE = "RuntimeError: [pair.cc:525] Connection closed by peer [10.0.0.3]:27189 (train.py:75 in main)"
STALE = "OSError: [Errno 116] Stale file handle: '/data/latest' (train.py:20 in load)"
MINUTES = 60.0


def failed(
    number: int, *, words: str = BAD_ROW, rank: int = 1, iterations: int = 500, minutes: float = 90.0
) -> Observation:
    """Return a look at the failure with this number: one rank said these words, and the others lost it."""
    now = NOW + number * minutes * MINUTES
    lost = {**ended(exit_code=1, at=now - 0.1), "last_words": PEER_GONE, "iterations": iterations}
    own = {**ended(exit_code=1, at=now - 0.2), "last_words": words, "iterations": iterations}
    obs = seen(ranks={each: own if each == rank else lost for each in range(3)}, generation=number + 1)
    return replace(obs, now=now)


def all_of(looks: list[Observation], policy: Policy = POLICY) -> list[Step]:
    """Return what is done about these failures; each is over before the next."""
    state, steps = RecoveryState(), []
    for obs in looks:
        taken = restart_ladder.step(replace(state, stop=None), Look(obs, policy))
        state = taken.state
        steps.append(taken)
    return steps


def given_up(taken: Step) -> GiveUp | None:
    return next((command for command in taken.commands if isinstance(command, GiveUp)), None)


def test_the_same_failure_at_the_same_iteration_ends_the_job_though_the_budget_forgets_it() -> None:
    steps = all_of([failed(0, iterations=9000), *(failed(number) for number in range(1, 4))])
    assert [taken.commands for taken in steps[:3]] == [[Restart()]] * 3
    end = given_up(steps[3])
    assert end is not None
    assert (end.reason, end.waits) == ("RepeatedFailure", False)
    assert "ValueError: row 8812 has 3 columns (data.py:40 in rows)" in end.message
    assert "has come 4 times, 3 times at iteration 500" in end.message
    assert "kubectl logs gpt2-1" in end.message


def test_the_same_words_with_other_numbers_on_several_nodes_are_the_same_failure() -> None:
    looks = [
        failed(number, words=BAD_ROW.replace("8812", str(number)), rank=number % 3, iterations=100 * (number + 1))
        for number in range(4)
    ]
    steps = all_of(looks)
    assert [given_up(taken) is not None for taken in steps] == [False, False, False, True]
    end = given_up(steps[3])
    assert end is not None
    assert "on nodes node-0 and node-1 and node-2" in end.message


def test_other_failures_and_other_iterations_do_not_add_up() -> None:
    one_node = [failed(number, iterations=100 * (number + 1)) for number in range(8)]
    assert not any(map(given_up, all_of(one_node))), "one node, each time at another iteration"
    words = [
        failed(number, words=f"ValueError: {'abcdefgh'[number]} is bad (data.py:40 in rows)") for number in range(8)
    ]
    assert not any(map(given_up, all_of(words)))


def test_what_lies_outside_the_job_is_no_repeated_failure() -> None:
    assert not any(map(given_up, all_of([failed(number, words=STALE) for number in range(8)])))
    killed = [
        replace(seen(ranks={1: ended(signal=9, at=NOW + number * 5400 - 0.1)}), now=NOW + number * 5400.0)
        for number in range(8)
    ]
    assert not any(map(given_up, all_of(killed)))


def ended_alike(end: dict[str, object], iterations: Sequence[int]) -> list[Step]:
    """Return what is done about ends of rank 1, of which its iteration alone shows that they are the same."""
    looks = []
    for number, iteration in enumerate(iterations):
        now = NOW + number * 90 * MINUTES
        ranks = {rank: {"iterations": iteration} for rank in range(3)}
        ranks[1] |= {**end, "ended_at": now - 0.1}
        looks.append(replace(seen(ranks=ranks, generation=number + 1), now=now))
    return all_of(looks)


@pytest.mark.parametrize(
    "end",
    [
        ended(signal=9) | {"oom_killed": True},
        ended(signal=9) | {"last_words": "std::bad_alloc"},
        ended(signal=11),
        ended(exit_code=1),
    ],
    ids=["killed for memory", "killed after it said so", "crashed", "no words"],
)
def test_an_end_that_explains_little_is_the_same_failure_at_the_same_iteration_only(end: dict[str, object]) -> None:
    steps = ended_alike(end, [500] * 4)
    assert [given_up(taken) is not None for taken in steps] == [False, False, False, True]
    assert not any(map(given_up, ended_alike(end, [500, 700, 900, 1100, 1300])))
    assert not any(map(given_up, ended_alike(end, [0] * 5)))


def test_hangs_at_the_same_iteration_are_the_same_failure_whoever_waits() -> None:
    hang = Fault(severity=Severity.SEV2, cause=Cause.HANG, text="stands still", replica=1, pod_name="gpt2-1", node="")
    seen_before: list[Repeat] = []
    for number in range(4):
        assert repeated(seen_before, hang) is None
        fault = replace(hang, text=f"rank {number} never arrived", rank=number)
        seen_before = remembered(seen_before, fault, None, iterations=500, now=NOW + number * 5400)
    assert repeated(seen_before, hang) is not None


def test_what_came_a_day_ago_is_forgotten() -> None:
    assert not any(map(given_up, all_of([failed(number, minutes=25 * 60.0) for number in range(8)])))


def test_the_job_may_wait_for_a_person_instead() -> None:
    steps = all_of([failed(number) for number in range(4)], replace(POLICY, repeated=Repeated(suspends=True)))
    end = given_up(steps[3])
    assert end is not None
    assert (end.reason, end.waits) == ("RepeatedFailure", True)
