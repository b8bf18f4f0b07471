"""Answers are kept until an event, a write or their age makes them void."""

from __future__ import annotations

import pytest

from falcon_operator.cluster.cache.read_cache import ReadCache
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


class Stored:
    """An object with a version, which is its value."""

    def __init__(self, version: int) -> None:
        self.version = version

    async def read(self) -> int:
        return self.version


def versioned(clock: FakeClock) -> ReadCache[str, int]:
    return ReadCache(clock, 10.0, lambda version: version)


async def test_an_event_of_what_is_known_already_voids_nothing(clock: FakeClock) -> None:
    cache, server = versioned(clock), Stored(5)
    assert await cache.get("a", server.read) == 5
    server.version = 7
    cache.changed("a", 5)
    assert await cache.get("a", server.read) == 5
    cache.changed("a", 6)
    assert await cache.get("a", server.read) == 7
    server.version = 8
    cache.changed("a", None)
    assert await cache.get("a", server.read) == 8, "a deletion has no version"


async def test_the_answer_to_a_write_is_kept_and_its_event_voids_nothing(clock: FakeClock) -> None:
    cache, server = versioned(clock), Stored(0)
    state = cache.drop("a")
    cache.keep("a", 5, state)
    cache.changed("a", 5)
    assert await cache.get("a", server.read) == 5


async def test_the_answer_to_a_write_that_somebody_overtook_is_not_kept(clock: FakeClock) -> None:
    cache, server = versioned(clock), Stored(6)
    state = cache.drop("a")
    cache.changed("a", 6)  # the event of a later write comes before the answer to ours
    cache.keep("a", 5, state)
    assert await cache.get("a", server.read) == 6


async def test_what_is_read_during_a_write_is_not_kept_over_its_answer(clock: FakeClock) -> None:
    cache = versioned(clock)
    state = cache.drop("a")

    async def slow() -> int:
        cache.keep("a", 5, state)
        return 4

    assert await cache.get("a", slow) == 4
    assert await cache.get("a", Stored(9).read) == 5


async def test_it_stays_small_and_right_over_many_keys(clock: FakeClock) -> None:
    cache, server = ReadCache[int, int](clock, 10.0), Server()
    for key in range(10_000):
        await cache.get(key, server.read)
        cache.drop(key)
    assert len(cache._kept) + len(cache._changes) <= 2 * 4096
    await cache.get(1, server.read)
    cache.drop(1)
    assert await cache.get(1, server.read) == server.asked
