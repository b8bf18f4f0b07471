"""A Prometheus that is slow, huge or wrong, or leads elsewhere, costs its own metrics and gets no token by mistake.

The server here is a stand-in that speaks the documented API, since a real Prometheus does none of that
(``test_prometheus`` has a real one).
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from aiohttp import web

from falcon_anomaly.prometheus import client, rounds
from falcon_anomaly.prometheus.rounds import MOST_WINDOWS, Rounds
from falcon_anomaly.queries.answers import MOST_BYTES
from falcon_anomaly.queries.joining import Joined, Known
from falcon_anomaly.queries.specification import PODS, Query, Specification
from falcon_anomaly.series.board import WINDOW_SECONDS
from tests.integration.operator.authority import Authority

Answer = Callable[[web.Request, Mapping[str, str]], Awaitable[web.StreamResponse]]
POD = Known("job", "team", (0,))


def matrix(labels: dict[str, str], form: Mapping[str, str]) -> web.Response:
    """Answer with one series, whose values count the windows that were asked for."""
    start, end = float(form["start"]), float(form["end"])
    times = np.arange(start, end + 1.0, float(form["step"])).tolist()
    result = [{"metric": labels, "values": [[at, str(number)] for number, at in enumerate(times)]}]
    return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})


class Stand:
    """A server in Prometheus' place, which knows where the pod is, and whose answer to the query the test decides."""

    def __init__(self) -> None:
        self.answer: Answer = self.well
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.url = ""

    async def respond(self, request: web.Request) -> web.StreamResponse:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.tokens.append(request.headers.get("Authorization", ""))
        if form["query"].startswith("kube_pod_info"):
            return matrix({"uid": "u", "namespace": "team", "pod": "a", "node": "n"}, form)
        self.asked.append(form)
        return await self.answer(request, form)

    async def well(self, _: web.Request, form: Mapping[str, str]) -> web.StreamResponse:
        return matrix({"namespace": "team", "pod": "a"}, form)


@contextlib.asynccontextmanager
async def standing(context: ssl.SSLContext | None = None) -> AsyncIterator[Stand]:
    stand = Stand()
    app = web.Application()
    app.add_routes([web.post("/api/v1/query_range", stand.respond), web.post("/elsewhere", stand.respond)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    stand.url = f"{'http' if context is None else 'https'}://localhost:{runner.addresses[0][1]}"
    try:
        yield stand
    finally:
        await runner.cleanup()


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with standing() as stand:
        yield stand


class Service:
    """What the service makes of the answers."""

    def __init__(self, url: str, secrets: Path | None = None, *queries: str) -> None:
        asked = tuple(Query(metric=each, query=each) for each in queries or ("m",))
        self.taken: list[tuple[str, npt.NDArray[np.float64], Mapping[str, Joined]]] = []
        self.rounds = Rounds(Specification(url=url, queries=asked), secrets, self._pods, self._take)

    async def _pods(self) -> dict[str, Known]:
        return {"u": POD}

    async def _take(self, name: str, ends: npt.NDArray[np.float64], found: Mapping[str, Joined]) -> None:
        self.taken.append((name, ends, found))

    async def round(self) -> None:
        """Ask all queries once, those that pause as well."""
        for state in self.rounds.states.values():
            state.paused_until = 0.0
        await self.rounds._round(await self._pods())


async def test_a_query_is_asked_for_the_windows_that_are_missing_alone(stand: Stand) -> None:
    service = Service(stand.url)
    await service.round()
    (first,) = stand.asked
    assert (float(first["end"]) - float(first["start"])) / WINDOW_SECONDS == MOST_WINDOWS - 1
    assert float(first["end"]) % WINDOW_SECONDS == 0
    (name, ends, found) = service.taken[0]
    assert (name, found["job"].ranks.tolist()) == ("queried:m", [0])
    assert found["job"].values[0].tolist() == list(range(MOST_WINDOWS))
    assert 0 <= time.monotonic() - ends[-1] <= rounds.LATE_SECONDS + WINDOW_SECONDS + 5
    await service.round()
    assert len(stand.asked) == 1, "no minute has passed"
    service.rounds.states["m"].until -= 6 * WINDOW_SECONDS
    await service.round()
    again = stand.asked[1]
    assert float(again["end"]) - float(again["start"]) == 5 * WINDOW_SECONDS


async def slow(_: web.Request, form: Mapping[str, str]) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


async def huge(request: web.Request, _: Mapping[str, str]) -> web.StreamResponse:
    """Send more than is read, without saying how much it is."""
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for _ in range(4 * MOST_BYTES // 65_536):
            await response.write(b" " * 65_536)
    return response


async def bomb(_: web.Request, __: Mapping[str, str]) -> web.StreamResponse:
    packed = gzip.compress(b" " * (64 << 20))
    return web.Response(body=packed, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})


async def refused(_: web.Request, __: Mapping[str, str]) -> web.StreamResponse:
    return web.json_response({"status": "error", "errorType": "execution", "error": "query timed out"}, status=503)


async def no_json(_: web.Request, __: Mapping[str, str]) -> web.StreamResponse:
    return web.Response(text="<html>sign in</html>")


async def vector(_: web.Request, __: Mapping[str, str]) -> web.StreamResponse:
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (slow, "TimeoutError"),
        (huge, "more than 8388608 bytes"),
        (bomb, "QueryError"),
        (refused, "HTTP status 503: query timed out"),
        (no_json, "QueryError"),
        (vector, "QueryError"),
    ],
)
async def test_a_bad_answer_costs_this_query_and_no_other_and_a_later_one_counts(
    stand: Stand, answer: Answer, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is slow:  # the others are judged by what they say, however long a busy machine takes to say it
        monkeypatch.setattr(client, "ANSWER_SECONDS", 2.0)

    async def one_is_bad(request: web.Request, form: Mapping[str, str]) -> web.StreamResponse:
        return await (answer if form["query"] == "bad" else stand.well)(request, form)

    stand.answer = one_is_bad
    service = Service(stand.url, None, "bad", "good")
    await service.round()
    states = service.rounds.states
    assert [states[name].answers for name in (PODS, "bad", "good")] == [True, False, True]
    assert (states["bad"].failures, states["bad"].pause) == (1, WINDOW_SECONDS)
    assert said in states["bad"].trouble
    assert [name for name, _, _ in service.taken] == ["queried:good"]
    states["bad"].until = -np.inf  # a range that was too large is not asked for again
    await service.round()
    assert states["bad"].pause == 2 * WINDOW_SECONDS
    stand.answer = stand.well
    states["bad"].until = -np.inf
    await service.round()
    assert (states["bad"].answers, states["bad"].trouble, states["bad"].pause) == (True, "", 0.0)
    assert [name for name, _, _ in service.taken] == ["queried:good", "queried:bad"]


async def test_a_query_that_pauses_is_not_asked(stand: Stand) -> None:
    stand.answer = refused
    service = Service(stand.url)
    await service.round()
    await service.rounds._round({"u": POD})
    assert len(stand.asked) == 1


async def test_a_redirect_is_refused_and_the_token_goes_nowhere_else(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    async with standing(_serving(authority)) as stand, standing(_serving(authority)) as another:

        async def elsewhere(_: web.Request, __: Mapping[str, str]) -> web.StreamResponse:
            raise web.HTTPTemporaryRedirect(f"{another.url}/elsewhere")

        stand.answer = elsewhere
        service = Service(stand.url, _secrets(tmp_path, authority, "s3cret"))
        await service.round()
        assert service.rounds.states["m"].trouble == "QueryError: HTTP status 307"
        assert stand.tokens == ["Bearer s3cret"] * 2
        assert another.tokens == []


async def test_a_server_that_another_authority_has_signed_gets_no_token(tmp_path: Path) -> None:
    known, unknown = Authority(tmp_path / "known"), Authority(tmp_path / "unknown")
    async with standing(_serving(unknown)) as stand:
        secrets = _secrets(tmp_path, known, "s3cret")
        service = Service(stand.url, secrets)
        await service.round()
        assert "certificate verify failed" in service.rounds.states[PODS].trouble
        assert stand.tokens == []
        # The Secret is renewed, and the next question knows it.
        (secrets / "ca.crt").write_bytes(unknown.pair.cert)
        (secrets / "token").write_text("another\n")
        await service.round()
        assert service.rounds.states["m"].answers
        assert set(stand.tokens) == {"Bearer another"}


async def test_a_token_is_sent_by_https_alone_and_one_that_is_none_is_not_sent(stand: Stand, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    service = Service(stand.url, tmp_path)
    await service.round()
    assert "https alone" in service.rounds.states[PODS].trouble
    secure = Service(stand.url.replace("http:", "https:"), tmp_path)
    for wrong in ("", "two\r\nX-Header: lines", "x" * 20_000):
        (tmp_path / "token").write_text(wrong)
        await secure.round()
        assert "is no token" in secure.rounds.states[PODS].trouble, wrong
    assert stand.tokens == []


async def test_pods_of_which_nothing_is_known_are_said_and_asked_for_again_later(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(stand.url)
    monkeypatch.setattr(service, "_pods", lambda: _of({"v": POD}))
    await service.round()
    state = service.rounds.states[PODS]
    assert "does Prometheus scrape kube-state-metrics?" in state.trouble
    assert stand.asked == []
    await service.round()
    assert len(stand.tokens) == 1, "a minute has not passed"


async def _of(pods: dict[str, Known]) -> dict[str, Known]:
    return pods


def _serving(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    issued = authority.server("localhost")
    context.load_cert_chain(issued.cert, issued.key)
    return context


def _secrets(folder: Path, authority: Authority, token: str) -> Path:
    found = folder / "secrets"
    found.mkdir()
    (found / "ca.crt").write_bytes(authority.pair.cert)
    (found / "token").write_text(f"{token}\n")
    return found
