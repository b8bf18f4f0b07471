"""The reflector's order of lists and watches, against a server whose answers are written down in advance."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
import pytest

from falcon_operator.base.ports import Rejected
from falcon_operator.cluster.cache.mirror import Item, Mirror
from falcon_operator.cluster.cache.reflector import FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS, Reflector
from falcon_operator.cluster.transport import Expired

Answer = dict[str, Any] | Exception
Lines = list[dict[str, Any]] | Exception


def thing(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def page(*things: dict[str, Any], version: int, continue_: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "continue": continue_}, "items": list(things)}


def event(type_: str, name: str, version: int) -> dict[str, Any]:
    return {"type": type_, "object": thing(name, version)}


def decode(data: bytes | msgspec.Raw) -> Item[str]:
    metadata = msgspec.json.decode(data)["metadata"]
    return Item(("", metadata["name"]), int(metadata["resourceVersion"]), metadata["name"])


class Server:
    """The API server's answers, in their order; after the last the test is over."""

    def __init__(self, *answers: Answer | Lines) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, str]] = []
        self.waited: list[float] = []
        self.interruptions: list[tuple[str, str]] = []

    async def call(self, _method: str, _path: str, *, query: Mapping[str, str] | None = None) -> bytes:
        answer = self._next(query or {})
        assert isinstance(answer, dict), "a list was not expected"
        return json.dumps(answer).encode()

    async def lines(self, _path: str, query: Mapping[str, str], silent_seconds: float) -> AsyncGenerator[bytes, None]:
        answer = self._next(query)
        assert isinstance(answer, list), "a watch was not expected"
        for line in answer:
            yield json.dumps(line).encode()

    def _next(self, query: Mapping[str, str]) -> dict[str, Any] | list[dict[str, Any]]:
        if not self._answers:
            raise asyncio.CancelledError
        self.asked.append(dict(query))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def interrupted(self, resource: str, why: str) -> None:
        self.interruptions.append((resource, why))

    async def wait(self, seconds: float) -> None:
        self.waited.append(seconds)


async def reflected(server: Server) -> list[str]:
    """Run a reflector until the server has no answer left; return the names that its mirror holds then."""
    mirror: Mirror[str] = Mirror()
    query = {"labelSelector": "a=b"}
    reflector = Reflector(server, mirror, "/things", decode, query, server.interrupted, server.wait)
    with pytest.raises(asyncio.CancelledError):
        await reflector.run()
    return sorted(mirror.views())


async def test_it_lists_all_pages_and_watches_from_the_list() -> None:
    server = Server(
        page(thing("a", 3), version=10, continue_="more"),
        page(thing("b", 4), version=10),
        [event("ADDED", "c", 11), event("DELETED", "a", 12)],
    )
    assert await reflected(server) == ["b", "c"]
    first, second, watch = server.asked
    assert "continue" not in first
    assert second["continue"] == "more"
    assert (watch["watch"], watch["resourceVersion"]) == ("1", "10")
    assert {query["labelSelector"] for query in server.asked} == {"a=b"}


async def test_a_watch_that_ends_continues_where_it_was() -> None:
    bookmark = {"type": "BOOKMARK", "object": thing("", 40)}
    server = Server(
        page(version=10), [event("ADDED", "a", 11)], [event("ADDED", "b", 12), bookmark], [event("ADDED", "c", 41)]
    )
    assert await reflected(server) == ["a", "b", "c"]
    assert [query["resourceVersion"] for query in server.asked[1:]] == ["10", "11", "40"]
    assert server.waited == []
    assert server.interruptions == []


async def test_a_connection_that_breaks_is_made_again_after_a_growing_wait() -> None:
    broken = [OSError("reset") for _ in range(9)]
    server = Server(page(version=10), *broken, [event("ADDED", "a", 11)], OSError("reset"))
    assert await reflected(server) == ["a"]
    assert {query["resourceVersion"] for query in server.asked[1:-1]} == {"10"}
    *growing, after_success = server.waited
    assert growing[0] == after_success == FIRST_BACKOFF_SECONDS
    assert growing == sorted(growing)
    assert growing[-1] == LONGEST_BACKOFF_SECONDS


@pytest.mark.parametrize(
    "gone",
    [
        Expired("too old resource version"),
        [{"type": "ERROR", "object": {"kind": "Status", "code": 410, "status": "Failure", "message": "too old"}}],
    ],
    ids=["refused at once", "said in the stream"],
)
async def test_a_version_that_the_server_has_forgotten_is_listed_anew_and_finds_deletions(gone: Lines) -> None:
    server = Server(page(thing("a", 3), thing("b", 4), version=10), gone, page(thing("b", 4), version=90))
    assert await reflected(server) == ["b"]
    assert "watch" not in server.asked[2]


async def test_each_interruption_is_counted_with_its_reason() -> None:
    added = [event("ADDED", "a", 11)]
    server = Server(page(version=10), OSError("reset"), added, Expired("old"), page(version=90), Rejected("no"))
    await reflected(server)
    assert server.interruptions == [("things", why) for why in ("interrupted", "expired", "refused")]


async def test_a_list_whose_pages_expired_starts_over() -> None:
    server = Server(
        page(thing("a", 3), version=10, continue_="more"), Expired("token"), page(thing("b", 4), version=20)
    )
    assert await reflected(server) == ["b"]
    assert "continue" not in server.asked[2]


async def test_a_watch_that_is_refused_leaves_the_list() -> None:
    server = Server(page(thing("a", 3), version=10), Rejected("forbidden"), page(version=20))
    assert await reflected(server) == []
    assert server.waited == [FIRST_BACKOFF_SECONDS]


async def test_a_watch_that_ends_without_a_word_is_not_begun_again_at_once() -> None:
    server = Server(page(version=10), [], [event("ADDED", "a", 11)])
    assert await reflected(server) == ["a"]
    assert server.waited == [FIRST_BACKOFF_SECONDS]


async def test_another_error_in_the_stream_continues_at_the_same_version() -> None:
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "status": "Failure", "message": "etcd"}}
    server = Server(page(version=10), [event("ADDED", "a", 11), error], [event("ADDED", "b", 12)])
    assert await reflected(server) == ["a", "b"]
    assert server.asked[2]["resourceVersion"] == "11"
