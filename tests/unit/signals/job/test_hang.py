"""When silence is a hang, and for which rank all others wait."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.signals.calls.stream import Calls, traits
from falcon_core.signals.job.hang import Progress, explain_hang
from falcon_core.signals.rank.chain import RankChain
from falcon_core.signals.rank.hang_deadline import MINIMUM_DEADLINE_NS, HangDeadline
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import Op
from tests.unit.signals.streams import MS, Script, ddp

SECOND = 1_000 * MS
HOUR = 3600 * SECOND


def calls(ends: Sequence[int]) -> Calls:
    times = np.array(ends, dtype=np.int64)
    measured = np.ones(len(ends), dtype=np.bool_)
    bits = traits(np.full(len(ends), Op.ALL_REDUCE), np.full(len(ends), 1 << 20))
    same = np.zeros_like(times)
    return Calls(same, np.arange(len(ends)), times, times, measured, bits, same, same)


def learned(silences: Sequence[float]) -> HangDeadline:
    """Return the deadline after calls with these silences between them, in seconds."""
    deadline = HangDeadline()
    ends = (np.cumsum([1.0, *silences]) * SECOND).astype(np.int64)
    deadline.feed(calls(ends.tolist()))
    return deadline


def test_three_slow_iterations_but_never_less_than_the_minimum() -> None:
    deadline = learned([0.1] * 20)
    assert deadline.deadline_ns(0.1 * SECOND, 3) == MINIMUM_DEADLINE_NS
    assert deadline.deadline_ns(40 * SECOND, 3) == 120 * SECOND


def test_a_checkpoint_that_the_job_came_out_of_is_no_hang_next_time() -> None:
    assert learned([1.0] * 50 + [60.0] + [1.0] * 50).deadline_ns(SECOND, 3) == 120 * SECOND
    script = Script(jitter=0.02)
    chain = RankChain(Detection())
    for _ in range(3):
        script.cycle(ddp(2), times=20)
        script.now_ns += 30 * SECOND
    script.cycle(ddp(2), times=5)
    chain.feed(script.records)
    assert (chain.signals(0, 0).hang_deadline_ns or 0) >= 60 * SECOND
    successor = RankChain(Detection(), chain.memory())
    successor.feed(script.records[-12:])
    successor.feed(script.records[-12:])
    assert successor.memory().pauses == chain.memory().pauses


def test_a_pause_that_never_came_back_is_forgotten_and_a_rare_pause_that_recurs_is_not() -> None:
    once = learned([1.0, 600.0] + [60.0] * 600)
    assert once.deadline_ns(SECOND, 3) == 120 * SECOND
    recurring = learned([600.0, *[60.0] * 700, 600.0, *[60.0] * 1400])
    assert recurring.deadline_ns(SECOND, 3) == 1200 * SECOND


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=60), st.integers(1, 59))
def test_the_deadline_is_above_every_recent_pause_however_the_calls_are_split(silences: list[int], at: int) -> None:
    ends = np.cumsum(np.array([5, *silences], dtype=np.int64)).tolist()
    whole, split = HangDeadline(), HangDeadline()
    whole.feed(calls(ends))
    for part in (ends[:at], ends[at:]):
        split.feed(calls(part))
    assert whole.pauses == split.pauses
    assert len(whole.pauses) <= 64
    if ends[-1] < 6 * HOUR:
        assert whole.deadline_ns(1.0, 3) >= max(silences)


def progress_of(comm: str, entered: Sequence[int | None], finished: Sequence[int]) -> list[Progress]:
    return [
        Progress(rank=rank, comm=comm, entered=count, finished=done)
        for rank, (count, done) in enumerate(zip(entered, finished, strict=True))
        if count is not None
    ]


def found(progress: list[Progress], **members: tuple[int, ...]) -> list[tuple[str, tuple[int, ...], str, int, int]]:
    hangs = explain_hang(progress, members)
    return [(hang.kind, hang.ranks, hang.comm, hang.number, hang.waiting) for hang in hangs]


EVERYBODY = (0, 1, 2, 3)


def test_ranks_that_did_not_enter_the_call_of_the_others_never_arrived() -> None:
    progress = progress_of("dp", [8, 8, 7, 8], [7, 7, 7, 7])
    assert found(progress, dp=EVERYBODY) == [("NeverArrived", (2,), "dp", 7, 3)]


def test_who_enqueued_ahead_still_counts_as_waiting() -> None:
    progress = progress_of("dp", [12, 9, 7, 10], [7, 7, 7, 7])
    assert found(progress, dp=EVERYBODY)[0][:3] == ("NeverArrived", (2,), "dp")


def test_the_call_is_the_oldest_that_somebody_has_not_left() -> None:
    progress = progress_of("dp", [12, 9, 7, 10], [8, 7, 7, 7])
    assert found(progress, dp=EVERYBODY) == [("NeverArrived", (2,), "dp", 7, 3)]


def test_a_process_that_stopped_inside_a_call_begins_no_further_call() -> None:
    progress = progress_of("dp", [10, 10, 8, 10], [7, 7, 7, 7])
    assert found(progress, dp=EVERYBODY) == [("Transfer", (2,), "dp", 7, 4)]


def test_without_finished_counts_who_began_more_calls_waits_for_who_began_fewer() -> None:
    def enqueued(comm: str, **entered: int) -> list[Progress]:
        return [Progress(rank=int(rank[1:]), comm=comm, entered=count) for rank, count in entered.items()]

    assert found(enqueued("dp", r0=9, r1=12, r2=8), dp=(0, 1, 2)) == [("NeverArrived", (2,), "dp", 8, 2)]
    progress = [*enqueued("dp", r0=9, r1=8), *enqueued("tp", r1=31, r3=30)]  # 1 is awaited by 0, and waits for 3
    assert found(progress, dp=(0, 1), tp=(1, 3)) == [("NeverArrived", (3,), "tp", 30, 1)]
    assert found(enqueued("dp", r0=9, r1=9), dp=(0, 1)) == [], "the transfer, a device, or a host that waits elsewhere"


def test_who_waits_in_a_call_that_nobody_can_name_is_not_the_culprit() -> None:
    progress = progress_of("dp", [8, 8, 7], [7, 7, 7])
    assert [hang.kind for hang in explain_hang(progress, {"dp": (0, 1, 2)}, waiting_elsewhere={2})] == ["Deadlock"]


def test_a_member_that_never_reported_is_named() -> None:
    progress = progress_of("dp", [1, 1, None, 1], [0, 0, 0, 0])
    assert found(progress, dp=EVERYBODY) == [("NeverArrived", (2,), "dp", 0, 3)]


def test_who_is_behind_because_it_waits_elsewhere_is_not_the_culprit() -> None:
    progress = progress_of("dp", [8, 7, None, None], [7, 7, 0, 0])  # 1 is awaited by 0, and waits for 3
    progress += [
        Progress(rank=1, comm="tp", entered=31, finished=30),
        Progress(rank=3, comm="tp", entered=30, finished=30),
    ]
    assert found(progress, dp=(0, 1), tp=(1, 3)) == [("NeverArrived", (3,), "tp", 30, 1)]


def test_when_all_are_inside_the_transfer_is_stuck() -> None:
    assert found(progress_of("dp", [8, 8], [7, 7]), dp=(0, 1)) == [("Transfer", (0, 1), "dp", 7, 2)]


def test_two_communicators_entered_in_opposite_orders_are_a_deadlock() -> None:
    progress = [
        Progress(rank=0, comm="a", entered=5, finished=4),
        Progress(rank=1, comm="a", entered=4, finished=4),
        Progress(rank=0, comm="b", entered=4, finished=4),
        Progress(rank=1, comm="b", entered=5, finished=4),
    ]
    assert [hang[:2] for hang in found(progress, a=(0, 1), b=(0, 1))] == [("Deadlock", (1,)), ("Deadlock", (0,))]


def test_differing_finished_counts_alone_name_who_is_behind_and_equal_counts_name_nobody() -> None:
    assert [hang[:2] for hang in found(progress_of("dp", [8, 8, 7], [8, 8, 7]), dp=(0, 1, 2))] == [
        ("NeverArrived", (2,))
    ]
    assert found(progress_of("dp", [8, 8, 8], [8, 8, 8]), dp=(0, 1, 2)) == []


@pytest.mark.parametrize("late", [0, 3])
def test_the_order_of_the_counts_does_not_matter(late: int) -> None:
    progress = progress_of("dp", [8 - (rank == late) for rank in range(4)], [7] * 4)
    assert found(progress, dp=EVERYBODY) == found(progress[::-1], dp=EVERYBODY)
