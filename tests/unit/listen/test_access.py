"""Who may read a page, by what the API server says of the token; a stand-in for that server knows a few tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from falcon_listen import access as module
from falcon_listen.access import ACCESS_REVIEWS, MOST_STRANGERS, TOKEN_REVIEWS, Access, Refusal
from falcon_listen.token_answers import GOOD_SECONDS, LENT_SECONDS, REFUSED_SECONDS

ROLE = "falcon-metrics-reader"
USERS = {"prometheus": {"username": "prometheus", "uid": "1", "groups": ["g"], "extra": {"pod": ["p"]}}}
USERS["tenant"] = {"username": "tenant"}


class Server:
    """Answers reviews while ``open`` is set; ``trouble`` is raised instead, if there is one."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.trouble: OSError | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        self.asked.append((path, body["spec"]))
        await self.open.wait()
        if self.trouble is not None:
            raise self.trouble
        if path == TOKEN_REVIEWS:
            user = USERS.get(body["spec"]["token"])
            status = {"authenticated": True, "user": user} if user else {"error": "invalid bearer token"}
        else:
            status = {"allowed": body["spec"]["user"] == "prometheus"}
        return msgspec.json.encode({**body, "status": status})

    @property
    def checked(self) -> int:
        """Return how many tokens were asked about."""
        return sum(path == TOKEN_REVIEWS for path, _ in self.asked)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def guarded(server: Server, clock: Callable[[], float], failed: Callable[[str], None] = lambda _: None) -> Access:
    return Access(server.post, ROLE, failed=failed, clock=clock)


@pytest.mark.parametrize(
    ("authorization", "status", "words"),
    [
        (None, 401, "needs the header 'Authorization: Bearer <token>'"),
        ("Basic cHJvbWV0aGV1", 401, "needs the header"),
        ("Bearer ", 401, "needs the header"),
        ("Bearer stolen", 401, "does not know this token, or it has expired"),
        ("Bearer tenant", 403, f"tenant may not get /metrics: bind it to the ClusterRole {ROLE}"),
    ],
)
async def test_others_are_refused_with_the_remedy(authorization: str | None, status: int, words: str) -> None:
    refusal = await guarded(Server(), Clock()).refusal(authorization)
    assert refusal is not None
    assert (refusal.status, words in refusal.text, ROLE in refusal.text) == (status, True, True)
    assert refusal.headers == ({"WWW-Authenticate": "Bearer"} if status == 401 else {})


@pytest.mark.parametrize("authorization", ["Bearer prometheus", "bearer  prometheus "])
async def test_a_reader_is_admitted_by_all_that_the_token_says_of_it(authorization: str) -> None:
    server = Server()
    assert await guarded(server, Clock()).refusal(authorization) is None
    assert server.asked == [
        (TOKEN_REVIEWS, {"token": "prometheus"}),
        (
            ACCESS_REVIEWS,
            {
                "user": "prometheus",
                "uid": "1",
                "groups": ["g"],
                "extra": {"pod": ["p"]},
                "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
            },
        ),
    ]


@pytest.mark.parametrize(
    ("token", "seconds"), [("prometheus", GOOD_SECONDS), ("tenant", REFUSED_SECONDS), ("stolen", REFUSED_SECONDS)]
)
async def test_a_token_is_checked_again_after_a_while(token: str, seconds: float) -> None:
    server, clock = Server(), Clock()
    access = guarded(server, clock)
    for passed, checked in ((0.0, 1), (seconds - 0.1, 1), (0.1, 2)):
        clock.now += passed
        await access.refusal(f"Bearer {token}")
        assert server.checked == checked


async def test_while_the_api_server_is_away_a_good_answer_counts_for_a_while() -> None:
    troubles: list[str] = []
    server, clock = Server(), Clock()
    access = guarded(server, clock, troubles.append)
    assert await access.refusal("Bearer prometheus") is None
    server.trouble = OSError("connection refused")
    clock.now += LENT_SECONDS - 1
    assert await access.refusal("Bearer prometheus") is None
    for _ in range(3):
        unknown = await access.refusal("Bearer tenant")
        assert unknown is not None
        assert (unknown.status, "connection refused" in unknown.text) == (503, True)
        assert unknown.headers == {"Retry-After": "5"}
    clock.now += 1
    known = await access.refusal("Bearer prometheus")
    assert known is not None
    assert known.status == 503
    assert troubles == ["connection refused"], "it is reported once"
    server.trouble = None
    assert await access.refusal("Bearer prometheus") is None


async def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REVIEW_SECONDS", 0.05)
    server = Server()
    server.open.clear()
    refusal = await guarded(server, Clock()).refusal("Bearer prometheus")
    assert refusal is not None
    assert (refusal.status, "has not answered within" in refusal.text) == (503, True)


async def test_an_answer_that_cannot_be_read_is_no_answer() -> None:
    async def post(path: str, body: dict[str, Any]) -> bytes:
        return b"<html>"

    refusal = await Access(post, ROLE).refusal("Bearer prometheus")
    assert refusal is not None
    assert refusal.status == 503


async def test_clients_with_one_token_share_a_check_which_outlives_a_client_that_gives_up() -> None:
    server = Server()
    server.open.clear()
    access = guarded(server, Clock())
    first, *others = [asyncio.create_task(access.refusal("Bearer prometheus")) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    server.open.set()
    assert await asyncio.gather(*others) == [None] * 4
    assert server.checked == 1


async def test_few_unknown_tokens_are_checked_at_a_time_and_a_known_one_still_is() -> None:
    server, clock = Server(), Clock()
    access = guarded(server, clock)
    await access.refusal("Bearer prometheus")
    clock.now += GOOD_SECONDS
    server.open.clear()
    strangers = [asyncio.create_task(access.refusal(f"Bearer {number}")) for number in range(20)]
    known = asyncio.create_task(access.refusal("Bearer prometheus"))
    for _ in range(5):  # turns of the loop: until all that can go on has done so
        await asyncio.sleep(0)
    refused = [each.result() for each in strangers if each.done()]
    assert len(refused) == 20 - MOST_STRANGERS
    assert {each.status for each in refused if isinstance(each, Refusal)} == {503}
    assert server.checked == 1 + MOST_STRANGERS + 1
    server.open.set()
    assert await known is None
    assert {each.status for each in await asyncio.gather(*strangers) if each is not None} == {401, 503}
