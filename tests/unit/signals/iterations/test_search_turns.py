"""The ranks that one agent follows search for their iterations one by one, since its poll waits for all of them."""

from __future__ import annotations

from collections import Counter

from falcon_core.signals.calls.stream import PLACES, Calls
from falcon_core.signals.iterations.segmenter import IterationTracker
from falcon_core.wire.ring import Op
from tests.unit.signals.streams import MS, Call, Script


def _first_ms(calls: Calls, place: int) -> int:
    """Return when a rank's first iteration was counted, in ms since its first call."""
    tracker, starts = IterationTracker(place=place), calls.starts_ns
    for at in range(len(calls)):
        if tracker.feed(calls.cut(at, at + 1)):
            return int(starts[at] - starts[0]) // MS
    raise AssertionError("no iteration was found")


def test_ranks_of_one_agent_find_their_iterations_in_different_polls() -> None:
    """Check polls of 100 ms: what all ranks do at once is the longest of them."""
    script = Script(jitter=0.02)
    script.cycle([Call(Op.ALL_REDUCE, 1024 * (1 + n), 4 * MS) for n in range(40)], times=8)
    found = [_first_ms(script.calls, place) for place in range(PLACES)]
    assert max(Counter(at // 100 for at in found).values()) <= 4
    assert max(found) - found[0] <= 400, "no rank waits for longer than a round and a search"


def test_a_rank_whose_calls_are_rare_does_not_miss_its_turn() -> None:
    script = Script(jitter=0.02)
    script.cycle([Call(Op.ALL_REDUCE, 1024 * (1 + n), 640 * MS, 0) for n in range(3)], times=20)
    found = [_first_ms(script.calls, place) for place in range(PLACES)]
    assert max(found) - found[0] <= 2 * 640 + 40
