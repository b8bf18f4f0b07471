"""The keyed queue: one turn at a time for a key, none lost, failures further and further apart."""

from __future__ import annotations

import asyncio

import pytest

from falcon_operator.runtime.workqueue import FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS, KeyedQueue, work
from tests.unit.operator.fake_clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_key_added_thrice_has_one_turn(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock)
    for _ in range(3):
        queue.add("a")
    assert queue.take() == "a"
    queue.done("a")
    assert queue.take() is None


def test_keys_come_in_the_order_in_which_they_are_due(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock)
    queue.add("late", 5.0)
    queue.add("soon", 1.0)
    queue.add("now")
    assert queue.take() == "now"
    assert queue.take() is None
    clock.advance(10.0)
    assert (queue.take(), queue.take()) == ("soon", "late")


def test_the_earlier_wish_counts(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock)
    queue.add("a", 30.0)
    queue.add("a", 2.0)
    queue.add("a", 40.0)
    clock.advance(2.0)
    assert queue.take() == "a"
    queue.done("a")
    clock.advance(100.0)
    assert queue.take() is None


def test_a_key_in_work_is_not_given_out_again_but_gets_another_turn(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock)
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    queue.add("a")
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == "a"
    queue.done("a")
    assert queue.take() is None


def test_a_turn_may_ask_for_the_next(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock)
    queue.add("a")
    assert queue.take() == "a"
    queue.done("a", 7.0)
    assert queue.seconds_to_next() == pytest.approx(7.0)
    clock.advance(7.0)
    assert queue.take() == "a"


def test_failures_are_repeated_further_and_further_apart_up_to_a_bound(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock)
    queue.add("a")
    waits = []
    for _ in range(12):
        assert queue.take() == "a"
        waits.append(queue.failed("a"))
        queue.add("a")  # an event does not defeat the backoff
        assert queue.take() is None
        clock.advance(waits[-1])
    assert waits[:3] == [FIRST_BACKOFF_SECONDS, 2 * FIRST_BACKOFF_SECONDS, 4 * FIRST_BACKOFF_SECONDS]
    assert waits[-1] == LONGEST_BACKOFF_SECONDS
    assert queue.take() == "a"
    queue.done("a")
    queue.add("a")
    assert queue.take() == "a", "a success ends the backoff"


@pytest.mark.parametrize(("took", "pause"), [(0.0, 0.05), (0.2, 0.2), (7.0, 0.5)])
def test_a_pause_is_as_long_as_the_turn_took_within_bounds(clock: FakeClock, took: float, pause: float) -> None:
    queue = KeyedQueue[str](clock, pause_seconds=0.5)
    queue.add("a")
    assert queue.take() == "a"
    clock.advance(took)
    queue.done("a")
    queue.add("a")
    assert queue.seconds_to_next() == pytest.approx(pause)
    clock.advance(pause + 1e-6)
    assert queue.take() == "a"


def test_between_two_turns_of_a_key_lies_the_pause_and_other_keys_do_not_wait_for_it(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock, pause_seconds=0.5)
    queue.add("a")
    assert queue.take() == "a"
    clock.advance(1.0)
    queue.done("a")
    queue.add("a")
    queue.add("b")
    assert queue.take() == "b"
    assert queue.take() is None
    clock.advance(0.5)
    assert queue.take() == "a"


def test_what_is_urgent_skips_one_pause_and_not_the_next(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock, pause_seconds=0.2)
    queue.add("a")
    assert queue.take() == "a"
    queue.done("a")
    queue.add("a", urgent=True)
    assert queue.take() == "a"
    queue.done("a")
    queue.add("a", urgent=True)
    assert queue.take() is None, "a flood of what is urgent costs twice as much as any other, and no more"
    clock.advance(0.2)
    assert queue.take() == "a"
    queue.done("a")
    queue.add("a", urgent=True)
    assert queue.take() == "a", "it has paused since"


def test_what_became_urgent_during_a_turn_follows_it_at_once(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock, pause_seconds=0.2)
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a", urgent=True)
    queue.done("a", 5.0)
    assert queue.take() == "a"
    queue.done("a")
    assert queue.take() is None


def test_a_key_that_failed_is_not_urgent(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock)
    queue.add("a")
    assert queue.take() == "a"
    queue.failed("a")
    queue.add("a", urgent=True)
    assert queue.take() is None
    clock.advance(FIRST_BACKOFF_SECONDS)
    assert queue.take() == "a"


def test_depth_counts_what_is_due(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock)
    queue.add("a")
    queue.add("b", 9.0)
    assert len(queue) == 1


def test_idle_keys_leave_no_trace(clock: FakeClock) -> None:
    queue = KeyedQueue[int](clock, pause_seconds=0.1)
    for key in range(5000):
        queue.add(key)
        assert queue.take() == key
        queue.done(key)
        clock.advance(1.0)
    assert len(queue._not_before) < 200


async def test_workers_share_the_keys_and_a_failing_key_stops_none_of_them(clock: FakeClock) -> None:
    queue = KeyedQueue[str](clock)
    turns: list[str] = []
    observed: list[tuple[str, bool]] = []
    finished = asyncio.Event()

    def observe(key: str, _seconds: float, good: bool) -> None:
        observed.append((key, good))
        if len(observed) == 4:
            finished.set()

    async def handle(key: str) -> float | None:
        turns.append(key)
        await asyncio.sleep(0)
        if key == "bad":
            raise ValueError("no")
        if key == "unreachable":
            raise OSError("gone")
        return None

    worker = asyncio.create_task(work(queue, handle, observe, clock, most=2))
    for key in ("bad", "unreachable", "good", "last"):
        queue.add(key)
    async with asyncio.timeout(5):
        await finished.wait()
    worker.cancel()
    assert sorted(turns) == ["bad", "good", "last", "unreachable"]
    assert set(observed) == {("bad", False), ("unreachable", False), ("good", True), ("last", True)}


async def test_a_turn_that_takes_long_keeps_no_other_key_waiting_and_no_more_than_the_limit_run(
    clock: FakeClock,
) -> None:
    queue = KeyedQueue[str](clock)
    begun: list[str] = []
    end_long = asyncio.Event()
    two_done = asyncio.Event()

    async def handle(key: str) -> float | None:
        begun.append(key)
        if key.startswith("long"):
            await end_long.wait()
        return None

    def observe(key: str, _seconds: float, _good: bool) -> None:
        if key == "short 2":
            two_done.set()

    worker = asyncio.create_task(work(queue, handle, observe, clock, most=3))
    for key in ("long 1", "long 2", "short 1", "short 2", "long 3", "short 3"):
        queue.add(key)
    async with asyncio.timeout(5):
        await two_done.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == ["long 1", "long 2", "short 1", "short 2", "long 3"]
    end_long.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun[-1] == "short 3"
    worker.cancel()


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancellation_is_not_lost_where_a_key_is_added_at_the_same_moment(clock: FakeClock, steps: int) -> None:
    queue: KeyedQueue[str] = KeyedQueue(clock)
    queue.add("later", 60.0)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    queue.add("earlier", 30.0)
    for _ in range(steps):  # of the event loop, between the news and the cancellation
        await asyncio.sleep(0)
    waiting.cancel()
    done, _ = await asyncio.wait({waiting}, timeout=0.2)
    assert done, "it went on waiting for the next key"
