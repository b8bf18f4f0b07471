"""When the session counts as whole."""

from __future__ import annotations

from falcon_core.times import SILENCE_SECONDS
from falcon_operator.bus.health import SessionHealth


def test_nothing_heard_is_no_session() -> None:
    assert SessionHealth().healthy_since(100.0) is None


def test_it_is_whole_since_the_first_heartbeat_in_a_row() -> None:
    health = SessionHealth()
    for second in range(10):
        health.heard(100.0 + second)
    assert health.healthy_since(110.0) == 100.0


def test_silence_breaks_it_and_the_next_heartbeat_begins_anew() -> None:
    health = SessionHealth()
    health.heard(100.0)
    assert health.healthy_since(100.0 + SILENCE_SECONDS) == 100.0
    assert health.healthy_since(100.1 + SILENCE_SECONDS) is None
    health.heard(120.0)
    assert health.healthy_since(120.0) == 120.0
