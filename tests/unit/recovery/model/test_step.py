"""Show that joined steps keep the order in which commands and events were decided."""

from __future__ import annotations

from falcon_core.recovery.model.actions import Abandon, GiveUp, Restart, Switch
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from tests.unit.recovery.incidents import located

FIRST = SlowClosed(incident=located(), outcome="Relieved")
SECOND = SlowClosed(incident=located(), outcome="Superseded")


def test_events_come_before_the_commands_of_their_own_step() -> None:
    step = Step(RecoveryState(), [Restart(), GiveUp("no more")], [FIRST, SECOND])
    assert step.in_order() == [FIRST, SECOND, Restart(), GiveUp("no more")]


def test_joined_steps_keep_their_order_and_the_later_state() -> None:
    before, after = RecoveryState(), RecoveryState(incidents=2)
    step = Step(before, [Abandon(1)]).then(Step(before, events=[FIRST]))
    later = Step(before, [Switch(2)]).then(Step(after, [Restart()], [SECOND]))
    joined = step.then(later)
    assert joined.state is after
    assert joined.commands == [Abandon(1), Switch(2), Restart()]
    assert joined.events == [FIRST, SECOND]
    assert joined.in_order() == [Abandon(1), FIRST, Switch(2), SECOND, Restart()]


def test_a_step_that_changes_the_state_alone_is_empty() -> None:
    assert Step(RecoveryState(incidents=1)).is_empty
    assert not Step(RecoveryState(), [Restart()]).is_empty
    assert not Step(RecoveryState(), events=[FIRST]).is_empty
