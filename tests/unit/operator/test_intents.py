"""The recovery's state in the job's status: every version reads it, and people are not shown a line of a thousand."""

from __future__ import annotations

import msgspec

from falcon_core.recovery.state import HangFinding, HangIncident, RecoveryState
from falcon_operator.intent.intent import decode_state, encode_state
from tests.unit.recovery.test_failslow import located

STATE = RecoveryState(
    incidents=2,
    healthy_ns=250_000_000,
    slow=located(
        blocked='no spare: "a, b" \\", and a comma, in a text that is longer than a line could be' + ", x" * 40
    ),
    hang=HangIncident(
        id="gpt2-2",
        since=1.0,
        generation=1,
        iterations=7,
        findings=[
            HangFinding(
                kind="NeverArrived", ranks=[], total=1, comm="all ranks", members=3, number=4, waiting=2, entered=5
            )
        ],
    ),
)


def test_it_is_read_back() -> None:
    assert decode_state(encode_state(STATE)) == STATE
    assert decode_state({"version": 1, "state": msgspec.json.encode(STATE).decode()}) == STATE, "as one line, of before"
    assert decode_state(None) == RecoveryState()


def test_no_line_is_longer_than_a_screen_but_for_a_text_in_it() -> None:
    lines = str(encode_state(STATE)["state"]).splitlines()
    assert len(lines) > 5
    assert sum(len(line) > 110 for line in lines) <= 1
