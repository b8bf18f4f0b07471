"""A checkpoint that Falcon asked for is reported as soon as it is there; other checkpoints have time."""

from __future__ import annotations

import msgspec

from falcon_agent.checkpoint.on_demand import Answer
from falcon_core.times import SAVE_SECONDS
from falcon_core.wire.reporting.messages import Plan
from falcon_core.wire.saves.checkpoint import Held
from tests.unit.agent.launch.test_plan import PLAN

OLD, NEW = Held(0, 20, 1), Held(0, 31, 2)


def plan(checkpoint: int = 0, generation: int = 1) -> Plan:
    return msgspec.structs.replace(PLAN, generation=generation, checkpoint=checkpoint)


def test_what_nobody_asked_for_is_no_news() -> None:
    answer = Answer()
    assert not answer.look(None, lambda: [OLD], 0.0)
    assert not answer.look(plan(), lambda: [OLD], 1.0)
    assert not answer.look(plan(), lambda: [NEW], 2.0)


def test_each_change_is_news_while_a_checkpoint_is_asked_for() -> None:
    answer = Answer()
    looks = [
        ([OLD], True),  # it may have been saved since the demand
        ([OLD], False),
        ([NEW], True),
        ([NEW], False),
        ([Held(0, 31, 2, in_folder=True)], True),
        ([Held(0, 31, 2, in_folder=True)], False),
    ]
    for second, (held, news) in enumerate(looks):
        assert answer.look(plan(1), lambda held=held: held, float(second)) is news


def test_a_demand_that_nobody_waits_for_any_more_is_over() -> None:
    answer = Answer()
    assert answer.look(plan(1), lambda: [OLD], 10.0)
    assert not answer.look(plan(1), lambda: [NEW], 10.5 + SAVE_SECONDS)
    assert answer.look(plan(2), lambda: [NEW], 11.0 + SAVE_SECONDS), "another demand of the generation"
    assert answer.look(plan(2, generation=2), lambda: [NEW], 12.0 + SAVE_SECONDS)
