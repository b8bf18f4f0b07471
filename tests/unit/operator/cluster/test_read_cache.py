"""Answers are kept until an event, a write or their age makes them void."""

from __future__ import annotations

import pytest

from falcon_operator.cluster.read_cache import ReadCache
from tests.unit.operator.fake_clock import FakeClock


class Server:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def read(self) -> int:
        self.asked += 1
        return self.asked


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_an_answer_is_kept_until_it_is_old(clock: FakeClock) -> None:
    cache, server = ReadCache[str, int](clock, 10.0), Server()
    assert await cache.get("a", server.read) == 1
    clock.advance(9.9)
    assert await cache.get("a", server.read) == 1
    clock.advance(0.1)
    assert await cache.get("a", server.read) == 2


async def test_an_event_voids_its_key_alone(clock: FakeClock) -> None:
    cache, server = ReadCache[str, int](clock, 10.0), Server()
    await cache.get("a", server.read)
    await cache.get("b", server.read)
    cache.drop("a")
    assert await cache.get("a", server.read) == 3
    assert await cache.get("b", server.read) == 2


async def test_an_answer_that_a_change_overtook_is_not_kept(clock: FakeClock) -> None:
    cache, server = ReadCache[str, int](clock, 10.0), Server()

    async def slow() -> int:
        answer = await server.read()
        cache.drop("a")  # the event comes while the answer is on its way
        return answer

    assert await cache.get("a", slow) == 1
    assert await cache.get("a", server.read) == 2


async def test_it_stays_small_and_right_over_many_keys(clock: FakeClock) -> None:
    cache, server = ReadCache[int, int](clock, 10.0), Server()
    for key in range(10_000):
        await cache.get(key, server.read)
        cache.drop(key)
    assert len(cache._kept) + len(cache._changes) <= 2 * 4096
    await cache.get(1, server.read)
    cache.drop(1)
    assert await cache.get(1, server.read) == server.asked
