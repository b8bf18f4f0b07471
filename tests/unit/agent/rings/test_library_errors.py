"""Retries and asynchronous errors of a communication library, as a ring tells them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from falcon_agent.rings.library_errors import Troubles
from falcon_agent.rings.tracker import Tracker
from falcon_core.wire import ring
from falcon_core.wire.ring import Kind
from tests.unit.agent.ring_files import descriptor, write_ring


def records(*kinds: tuple[int, int]) -> ring.RecordArray:
    """Return records of these kinds, with these codes of the library."""
    made: ring.RecordArray = np.zeros(len(kinds), dtype=ring.RECORD_DTYPE)
    made["kind"], made["bytes"] = zip(*kinds, strict=True)
    return made


def test_retries_are_counted_and_the_first_error_is_kept() -> None:
    troubles = Troubles()
    troubles.feed(records((Kind.RETRY, 2), (Kind.BLOCKING, 6), (Kind.RETRY, 0)))
    assert (troubles.retries, troubles.comm_error) == (2, 0)
    troubles.feed(records((Kind.ASYNC_ERROR, 6), (Kind.ASYNC_ERROR, 2), (Kind.RETRY, 2)))
    assert (troubles.retries, troubles.comm_error) == (3, 6)


def test_what_a_process_makes_up_is_bounded() -> None:
    troubles = Troubles()
    troubles.feed(records((Kind.ASYNC_ERROR, (1 << 64) - 1), (200, 1), *[(int(Kind.RETRY), 0)] * 70_000))
    assert (troubles.retries, troubles.comm_error) == (1 << 16, 1 << 16)


def test_both_are_news_and_in_the_agents_report(tmp_path: Path) -> None:
    rings = tmp_path / "launch" / "rings"
    rings.mkdir(parents=True)
    told = np.concatenate((records((Kind.RETRY, 2), (Kind.ASYNC_ERROR, 6)), descriptor(7, 2, 1)))
    path = write_ring(rings / "g1-r1-101.ring", told, rank=1, world_size=2)
    tracker = Tracker(tmp_path)
    assert tracker.poll([path.name])
    (report,) = tracker.signals(1)
    assert (report.retries, report.comm_error) == (1, 6)
    assert not tracker.poll(None), "no news twice"
