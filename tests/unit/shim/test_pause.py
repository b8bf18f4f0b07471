"""The consistent pause as a pure algorithm: by hand, and on a model of blocking and enqueuing libraries."""

from __future__ import annotations

import msgspec
import pytest

from falcon_core.recovery.probe.cut import Known
from tests.unit.shim import pause_rules as pause
from tests.unit.shim.pause_model import Model, pause_once, run_to_end
from tests.unit.shim.pause_rules import Channel, Cut, Phase, RankView

WORLD = Channel("world")
FORWARD = Channel("world", 0, 1)
MEMBERS = pause.channels({"world": (0, 1)}, {"world": [(0, 1)]})


def _view(world: int, forward: int, waiting: bool = False, in_flight: int = 0, opened: bool = False) -> RankView:
    return RankView({WORLD: world, FORWARD: forward}, in_flight, waiting, opened)


def test_targets_are_what_the_furthest_member_has_begun() -> None:
    state = pause.begin(MEMBERS, {0: _view(5, 2), 1: _view(4, 3)}, deadline_ns=100)
    assert state.targets == {WORLD: 5, FORWARD: 3}
    assert pause.targets_of(state, 0) == {WORLD: 5, FORWARD: 3}


def test_a_call_beyond_its_target_raises_it_for_its_peers() -> None:
    state = pause.begin(MEMBERS, {0: _view(5, 2), 1: _view(5, 3)}, deadline_ns=100)
    state = pause.step(state, {0: _view(6, 3), 1: _view(5, 3, waiting=True)}, now_ns=1)
    assert state.targets == {WORLD: 6, FORWARD: 3}
    assert state.phase is Phase.CLOSING


def test_closed_only_after_it_was_seen_twice_with_nothing_in_flight() -> None:
    state = pause.begin(MEMBERS, {0: _view(5, 3), 1: _view(5, 3)}, deadline_ns=100)
    there = {0: _view(5, 3, waiting=True), 1: _view(5, 3, waiting=True)}
    state = pause.step(state, {**there, 0: _view(5, 3, waiting=True, in_flight=1)}, now_ns=1)
    assert (state.phase, state.looks) == (Phase.CLOSING, 0)
    state = pause.step(state, there, now_ns=2)
    assert state.phase is Phase.CLOSING
    state = pause.step(state, there, now_ns=3)
    assert state.phase is Phase.CLOSED
    late = pause.step(state, {**there, 0: _view(6, 3)}, now_ns=4)
    assert late.phase is Phase.CLOSING, "a thread was past the gate, and the other ranks follow it"


def test_a_rank_that_is_not_seen_keeps_the_pause_from_closing() -> None:
    state = pause.begin(MEMBERS, {0: _view(5, 3)}, deadline_ns=100)
    state = pause.step(state, {0: _view(5, 3, waiting=True)}, now_ns=1)
    assert state.looks == 0


@pytest.mark.parametrize(
    ("now_ns", "opened", "reason"), [(100, False, "deadline"), (1, True, "rank 1 opened its gate")]
)
def test_given_up(now_ns: int, opened: bool, reason: str) -> None:
    state = pause.begin(MEMBERS, {0: _view(5, 3), 1: _view(5, 3)}, deadline_ns=100)
    state = pause.step(state, {0: _view(5, 3), 1: _view(5, 3, opened=opened)}, now_ns)
    assert (state.phase, state.reason) == (Phase.OPEN, reason)
    assert pause.step(state, {}, 200) == state


def _known(world: int, forward: int) -> Known:
    return Known({WORLD: world, FORWARD: forward}, {WORLD: 2, FORWARD: 8})


KNOWN = {0: _known(10, 100), 1: _known(12, 108)}


def test_the_next_iterations_start_is_preferred() -> None:
    state = pause.begin(MEMBERS, {0: _view(14, 117), 1: _view(14, 116)}, 100, known=KNOWN)
    assert (state.cut, state.targets) == (Cut.ITERATION_START, {WORLD: 16, FORWARD: 124})
    state = pause.begin(MEMBERS, {0: _view(14, 117), 1: _view(14, 116)}, 100, known={**KNOWN, 1: None})
    assert (state.cut, state.targets) == (Cut.EQUALISED, {WORLD: 14, FORWARD: 117})
    assert state.fallback == "rank 1 is in no regular iteration"


def test_a_start_that_a_rank_passed_meanwhile_moves_on_twice_and_no_more() -> None:
    state = pause.begin(MEMBERS, {0: _view(14, 117), 1: _view(14, 116)}, 100, known=KNOWN)
    for start in (18, 20):
        state = pause.step(state, {0: _view(start - 1, 117), 1: _view(14, 116)}, 1)
        assert (state.cut, state.targets[WORLD], state.targets[FORWARD]) == (Cut.ITERATION_START, start, 4 * start + 60)
    state = pause.step(state, {0: _view(21, 117), 1: _view(14, 116)}, 1)
    assert (state.cut, state.targets) == (Cut.EQUALISED, {WORLD: 21, FORWARD: 117})
    assert state.fallback == "calls went beyond the iteration's start"


def test_a_start_is_passed_by_whoever_has_begun_to_receive_from_anyone() -> None:
    views = {0: _view(14, 116), 1: msgspec.structs.replace(_view(14, 116), receives_any={"world": 1})}
    assert pause.begin(MEMBERS, views, 100, known=KNOWN).targets == {WORLD: 16, FORWARD: 124}
    views = {0: _view(14, 116), 1: msgspec.structs.replace(_view(13, 115), receives_any={"world": 1})}
    assert pause.begin(MEMBERS, views, 100, known=KNOWN).targets == {WORLD: 14, FORWARD: 116}


def test_whoever_may_be_waited_for_in_a_receive_from_anyone_may_pass_until_it_has_arrived() -> None:
    stands = _view(5, 3, waiting=True)
    receives = msgspec.structs.replace(_view(5, 3), receives_any={"world": 1})
    state = pause.begin(MEMBERS, {0: stands, 1: receives}, deadline_ns=100)
    for _ in range(pause.STALLED_LOOKS):
        state = pause.step(state, {0: stands, 1: receives}, 1)
        assert state.targets == {WORLD: 5, FORWARD: 3}
    state = pause.step(state, {0: stands, 1: receives}, 1)
    assert state.targets == {WORLD: 5, FORWARD: 4}
    state = pause.step(state, {0: _view(5, 4, waiting=True), 1: receives}, 1)
    assert state.targets == {WORLD: 5, FORWARD: 4}, "it goes no further than to its send"
    there = {0: _view(5, 4, waiting=True), 1: _view(5, 4, waiting=True)}
    for _ in range(pause.STABLE_LOOKS):
        state = pause.step(state, there, 1)
    assert (state.phase, state.fallback) == (Phase.CLOSED, "rank 1 waits to receive from anyone")


def test_while_another_rank_may_compute_nobody_may_pass() -> None:
    receives = msgspec.structs.replace(_view(5, 3), receives_any={"world": 1})
    state = pause.begin(MEMBERS, {0: _view(5, 3), 1: receives}, deadline_ns=100)
    for _ in range(pause.BUSY_LOOKS):
        state = pause.step(state, {0: _view(5, 3), 1: receives}, 1)
        assert state.targets == {WORLD: 5, FORWARD: 3}
    assert pause.step(state, {0: _view(5, 3), 1: receives}, 1).targets == {WORLD: 5, FORWARD: 4}


def test_after_half_of_the_time_the_counts_are_equalised_where_they_are() -> None:
    views = {0: _view(14, 117), 1: _view(14, 116)}
    state = pause.begin(MEMBERS, views, deadline_ns=100, now_ns=60, known=KNOWN)
    assert pause.step(state, views, 79).targets == {WORLD: 16, FORWARD: 124}
    state = pause.step(state, views, 80)
    assert (state.cut, state.targets) == (Cut.EQUALISED, {WORLD: 14, FORWARD: 117})


def test_a_cut_is_no_iterations_start_if_a_ranks_calls_say_otherwise() -> None:
    state = pause.begin(MEMBERS, {0: _view(10, 100), 1: _view(10, 100)}, 100, known=KNOWN)
    assert pause.confirmed(state, {0: True, 1: True}).cut is Cut.ITERATION_START
    judged = pause.confirmed(state, {0: True, 1: False})
    assert (judged.cut, judged.fallback) == (Cut.EQUALISED, "the calls of rank 1 do not end with an iteration")


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "enqueuing"])
def test_random_programs_stop_at_a_cut_and_go_on(blocking: bool) -> None:
    for seed in range(60):
        model = Model(seed, ranks=2 + seed % 5, blocking=blocking)
        for _ in range(4):
            for _ in range(model.chance.randrange(200)):
                model.tick()
            if any(rank.at > len(rank.calls) * 0.8 for rank in model.ranks):
                break  # a rank that has ended never comes to the gate
            paused = pause_once(model)
            assert (paused.phase, paused.moved, paused.undrained) == (Phase.CLOSED, 0, 0), (seed, paused)
        assert run_to_end(model), f"seed {seed}: the program hangs after its pauses"


def test_with_targets_that_are_never_raised_ranks_get_stuck() -> None:
    """Check that the model can fail: a call beyond its target has to raise the target for the other ranks."""
    stuck = 0
    for seed in range(20):
        model = Model(seed, ranks=4, blocking=True)
        for _ in range(150):
            model.tick()
        first = pause.begin(model.members, model.views(), 10_000)
        model.write(first)
        for _ in range(3000):
            model.tick()
        stuck += pause.step(first, model.views(), 0).looks == 0
    assert stuck > 0
