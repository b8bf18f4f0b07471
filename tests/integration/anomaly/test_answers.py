"""Who gets the service's verdicts, and what an operator makes of a service that is away or answers nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from falcon_anomaly import server
from falcon_anomaly.server import server_context
from falcon_anomaly.settings import EXIT_CONFIG
from falcon_core.wire.verdicts import MAX_ANSWER_BYTES, Answer, JobVerdicts, Verdict, encode_answer
from falcon_gateway import Tls
from falcon_operator.base.ports import JobFindings
from falcon_operator.bus import certs
from falcon_operator.runtime import anomaly_verdicts
from falcon_operator.runtime.anomaly_verdicts import STALE_SECONDS, AnomalyVerdicts
from tests.integration.anomaly.service_process import NAME, Service, issue, running, shown_by
from tests.integration.operator.authority import Authority
from tests.integration.operator.cluster import until, until_async
from tests.integration.ports import free_port
from tests.unit.operator.fake_clock import FakeClock

EXPIRES = "falcon_certificate_expires_timestamp_seconds"
VERDICT = Verdict(kind="differs", rank=1, metric="cpu", lasted=60)


def answer(*verdicts: Verdict) -> bytes:
    job = JobVerdicts(uid="u", namespace="team", name="gpt2", generation=3, verdicts=list(verdicts))
    return encode_answer(Answer(jobs=[job] if verdicts else []))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "control")


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> Path:
    return issue(authority, tmp_path / "tls")


@pytest.fixture
def service(tmp_path: Path, tls: Path) -> Iterator[Service]:
    """Yield a service that serves, and whose gateway is away."""
    with running(Service(tmp_path, tls, f"localhost:{free_port()}")) as service:
        until(lambda: service.page("healthz")[0] == 200)
        yield service


async def status(service: Service, authority: Authority, client: Tls | None, path: str = "v1/verdicts") -> int:
    """Ask as this client, and return the HTTP status; 0 where the connection is refused."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    if client is not None:
        context.load_cert_chain(str(client.cert), str(client.key))
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"https://{service.address}/{path}", ssl=context) as response:
                return response.status
        except (aiohttp.ClientError, OSError):
            return 0


async def test_an_authority_that_has_left_is_trusted_no_more_without_a_restart(
    authority: Authority, tls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RENEWAL_SECONDS", 0.05)
    newest = Authority(tmp_path / "newest")

    async def asked(port: int, client: Authority) -> bool:
        context = ssl.create_default_context(cafile=str(authority.ca))  # which has signed the service's certificate
        issued = client.client("root")
        context.load_cert_chain(str(issued.cert), str(issued.key))
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"https://127.0.0.1:{port}/v1/verdicts", ssl=context) as response:
                    return response.status == 200
            except (aiohttp.ClientError, OSError):
                return False

    async def answers(port: int, client: Authority, *, wanted: bool) -> None:
        for _ in range(200):
            if await asked(port, client) is wanted:
                return
            await asyncio.sleep(0.05)
        pytest.fail(f"after 10 s, {client.folder.name} is {'not trusted yet' if wanted else 'still trusted'}")

    async with server.serving(server.Ports(free_port(), free_port()), server.Certificate(tls), _pages()) as ports:
        (tls / "ca.crt").write_bytes(newest.pair.cert + authority.pair.cert)
        await answers(ports.secured, newest, wanted=True)
        await answers(ports.secured, authority, wanted=True)
        (tls / "ca.crt").write_bytes(newest.pair.cert)
        await answers(ports.secured, authority, wanted=False)
        await answers(ports.secured, newest, wanted=True)


def _pages() -> server.Pages:
    async def no_overview(_uid: str, _seconds: int) -> None:
        return None

    async def no_lesson(_raw: bytes) -> bytes:
        return b"{}"

    return server.Pages(lambda: b"{}", no_overview, no_lesson, CollectorRegistry(), lambda: "")


async def test_a_renewed_certificate_is_shown_without_a_restart(
    authority: Authority, tls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RENEWAL_SECONDS", 0.05)
    context = ssl.create_default_context(cafile=str(authority.ca))
    client = authority.client("root")
    context.load_cert_chain(str(client.cert), str(client.key))

    async def shown(port: int) -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return certificate

    certificate = server.Certificate(tls)
    expires_first = certificate.expires_unix
    async with server.serving(server.Ports(free_port(), free_port()), certificate, _pages()) as ports:
        before = await shown(ports.secured)
        assert await shown(ports.secured) == before
        (tls / "tls.crt").write_bytes(b"half of a certifica")
        await asyncio.sleep(0.2)
        assert await shown(ports.secured) == before
        assert certificate.expires_unix == expires_first
        made = authority.now - dt.timedelta(days=40)  # expires earlier
        fresh = certs.issue_server(authority.pair, [NAME], made, certs.ANOMALY_SERVICE)
        (tls / "tls.key").write_bytes(fresh.key)
        (tls / "tls.crt").write_bytes(fresh.cert)
        for _ in range(200):
            if await shown(ports.secured) != before:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("the earlier certificate is still shown after 10 s")
        assert certificate.expires_unix == certs.expires_unix(fresh.cert) != expires_first


def test_its_metrics_say_when_the_certificate_expires_that_it_shows(service: Service, tls: Path) -> None:
    """While no operator runs, nothing else says it."""
    expires = certs.expires_unix((tls / "tls.crt").read_bytes())
    assert service.labelled(EXPIRES, "secret") == {"falcon-anomalies-tls": expires}


async def test_only_the_operator_gets_verdicts(service: Service, authority: Authority, tmp_path: Path) -> None:
    jobs = Authority(tmp_path / "jobs")
    asked = {
        "the operator": shown_by(authority, authority.client("root")),
        "a gateway or etcd": shown_by(authority, authority.client("falcon gateway")),
        "an agent": shown_by(authority, jobs.client("root")),
        "nobody": None,
    }
    found = {who: await status(service, authority, client) for who, client in asked.items()}
    assert found == {"the operator": 200, "a gateway or etcd": 403, "an agent": 0, "nobody": 0}
    overview = "v1/overview?job=a&seconds=60"
    found = {who: await status(service, authority, client, overview) for who, client in asked.items()}
    assert found == {"the operator": 404, "a gateway or etcd": 403, "an agent": 0, "nobody": 0}, "no job has series"
    for wrong in ("", "?job=a", "?job=a&seconds=-1", f"?job={65 * 'a'}&seconds=60", "?job=a&seconds=1e3"):
        assert await status(service, authority, asked["the operator"], f"v1/overview{wrong}") == 400, wrong
    assert await status(service, authority, asked["the operator"], "metrics") == 404


def test_it_serves_without_a_gateway_says_so_and_ends_at_a_signal(service: Service) -> None:
    assert service.page("readyz") == (503, "no gateway answers yet\n")
    assert service.metric("falcon_anomaly_gateways") == 0.0
    assert service.metric("falcon_anomaly_jobs") == 0.0
    assert service.page("v1/verdicts")[0] == 404
    assert service.end() == 0


def test_settings_that_are_wrong_are_named_all_at_once() -> None:
    environment = {"FALCON_GATEWAYS": "nowhere", "FALCON_LOG_LEVEL": "loud", "FALCON_TLS_DIR": "/tls"}
    command = [sys.executable, "-m", "falcon_anomaly"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == EXIT_CONFIG
    for named in ("FALCON_GATEWAYS='nowhere': write host:port", "FALCON_GATEWAY_NAME is not set", "FALCON_LOG_LEVEL"):
        assert named in done.stderr


class Stand:
    """A server in the service's place, whose answer the test decides."""

    def __init__(self) -> None:
        self.body = answer(VERDICT)
        self.status = 200

    async def respond(self, _: web.Request) -> web.Response:
        return web.Response(body=self.body, status=self.status)


@pytest.fixture
async def stand(tls: Path) -> AsyncIterator[tuple[Stand, str]]:
    stand = Stand()
    app = web.Application()
    app.add_routes([web.get("/v1/verdicts", stand.respond)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context(tls))
    await site.start()
    yield stand, f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@contextlib.asynccontextmanager
async def asking(
    address: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[AnomalyVerdicts, FakeClock, list[tuple[str, str]]]]:
    """Ask as the operator does, twenty times a second; yield with it its clock and the jobs that it called changed."""
    monkeypatch.setattr(anomaly_verdicts, "ASK_SECONDS", 0.05)
    clock, changed = FakeClock(), list[tuple[str, str]]()
    tls = shown_by(authority, authority.client("root"))
    verdicts = AnomalyVerdicts(address, tls, clock, lambda namespace, name: changed.append((namespace, name)))
    task = asyncio.create_task(verdicts.run())
    try:
        yield verdicts, clock, changed
        assert not task.done(), "the leader would have ended"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_operator_takes_verdicts_and_looks_at_a_job_when_their_subject_changes(
    stand: tuple[Stand, str], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, address = stand
    async with asking(address, authority, monkeypatch) as (verdicts, _, changed):
        assert verdicts.of("u") is None, "nothing is known before the first answer"
        await until_async(lambda: verdicts.of("u") == JobFindings(generation=3, verdicts=(VERDICT,)))
        assert verdicts.of("another") == JobFindings()
        assert changed == [("team", "gpt2")]
        server.body = answer(Verdict(kind="differs", rank=1, metric="cpu", lasted=70))
        await until_async(lambda: (now := verdicts.of("u")) is not None and now.verdicts[0].lasted == 70)
        assert changed == [("team", "gpt2")], "its figures alone have moved"
        server.body = answer()
        await until_async(lambda: len(changed) == 2)
        assert verdicts.of("u") == JobFindings()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda server: setattr(server, "status", 500),
        lambda server: setattr(server, "body", b"<html>"),
        lambda server: setattr(server, "body", b" " * (MAX_ANSWER_BYTES + 1)),
        lambda server: setattr(server, "body", answer(VERDICT).replace(b'"rank":1', b'"rank":-9')),
    ],
    ids=["error", "no JSON", "too large", "out of bounds"],
)
async def test_an_answer_that_is_wrong_is_no_answer_and_soon_there_are_no_verdicts(
    stand: tuple[Stand, str],
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Stand], None],
) -> None:
    server, address = stand
    async with asking(address, authority, monkeypatch) as (verdicts, clock, _):
        await until_async(lambda: verdicts.answers)
        spoil(server)
        await until_async(lambda: verdicts.failures)
        assert not verdicts.answers
        clock.advance(STALE_SECONDS)
        assert verdicts.of("u") == JobFindings(generation=3, age_seconds=STALE_SECONDS, verdicts=(VERDICT,))
        clock.advance(1)
        assert verdicts.of("u") == JobFindings()
        server.status, server.body = 200, answer(VERDICT)
        await until_async(lambda: verdicts.answers)
        assert verdicts.of("u") == JobFindings(generation=3, verdicts=(VERDICT,))


async def test_a_service_that_is_away_means_no_verdicts_and_nothing_else(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(f"127.0.0.1:{free_port()}", authority, monkeypatch) as (verdicts, clock, changed):
        await until_async(lambda: verdicts.failures > 2)
        assert verdicts.of("u") is None, "it may still start"
        clock.advance(STALE_SECONDS + 1)
        assert verdicts.of("u") == JobFindings()
        assert changed == []


async def test_a_server_with_a_certificate_of_another_authority_is_not_believed(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority(tmp_path / "other")
    async with asking(service.address, other, monkeypatch) as (verdicts, _, _):
        await until_async(lambda: verdicts.failures > 1)
        assert not verdicts.answers
