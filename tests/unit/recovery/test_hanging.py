"""When a job that does not move is reported as a hang, by what the awaited rank's process does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery.hanging import explain, nobody_waits, step
from falcon_core.recovery.state import RecoveryState
from falcon_core.times import IDLE_SECONDS, LULL_SECONDS, PATIENCE_SECONDS
from falcon_core.wire.messages import CommSignals, PairSignals
from tests.unit.recovery.seen import POLICY, seen

STATE = RecoveryState()


def stalled(seconds: float, inside: tuple[int, ...] = (1, 2), **zero: Any) -> Any:
    """Return a stall in which ranks 1 and 2 wait for rank 0; ``zero`` gives further fields of rank 0."""
    ranks: dict[int, dict[str, Any]] = {
        rank: {
            "stalled": True,
            "silent_seconds": seconds,
            "comms": [CommSignals(comm=7, size=3, place=rank, entered=40 + (rank in inside), finished=40)],
        }
        for rank in range(3)
    }
    ranks[0] |= zero
    return seen(ranks=ranks)


@pytest.mark.parametrize(
    ("zero", "patience"),
    [
        ({"cpu_fraction": 0.0}, IDLE_SECONDS),
        ({"cpu_fraction": None}, IDLE_SECONDS),
        ({"cpu_fraction": 0.003}, LULL_SECONDS),
        ({"cpu_fraction": 0.0, "blocked_seconds": 31.0}, LULL_SECONDS),
        ({"cpu_fraction": 0.8}, PATIENCE_SECONDS),
    ],
    ids=["stopped", "unknown", "now and then", "waits for a device", "at work"],
)
def test_how_long_the_awaited_rank_is_waited_for(zero: dict[str, Any], patience: float) -> None:
    """Check a stall in which rank 0 writes the first checkpoint or hangs, and the others are in the next all-reduce."""
    early, _ = step(STATE, stalled(patience - 1, **zero), POLICY)
    assert early.hang is None
    late, _ = step(STATE, stalled(patience + 1, **zero), POLICY)
    assert late.hang is not None
    assert [rank.place.rank for rank in late.hang.findings[0].ranks] == [0]


def test_where_nobody_is_inside_a_call_nobody_is_waited_for() -> None:
    """Check ranks that all save their shards or wait for data: a hang has a rank that waits."""
    outside = stalled(PATIENCE_SECONDS - 1, inside=())
    assert nobody_waits(outside)
    assert explain(outside, POLICY) == []
    assert step(STATE, outside, POLICY)[0].hang is None


@pytest.mark.parametrize(
    "zero",
    [
        {"comms": []},
        {"fresh": False},
        {"comms_left_out": 1},
        {"comms": [CommSignals(comm=7, size=3, place=0, entered=41, finished=None)]},
        {"pairs": [PairSignals(comm=7, peer=1, sending=False, entered=5, finished=4)]},
    ],
    ids=["no counts", "an old report", "more than a report holds", "ends not known", "in a receive"],
)
def test_where_a_rank_may_be_inside_a_call_it_is_not_said_that_nobody_waits(zero: dict[str, Any]) -> None:
    assert not nobody_waits(stalled(30, inside=(), **zero))
