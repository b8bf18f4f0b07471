"""Authorities and certificates replaced under a real etcd, a real gateway and agents that report all the time.

What a kubelet does is played: it writes the Secrets into folders. Hours are compressed into seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import encode_summary
from falcon_etcd import Client
from falcon_gateway import AgentClient, Desired, Leader, OperatorClient, Tls
from falcon_operator.base.clock import SystemClock
from falcon_operator.bus import certs
from falcon_operator.bus.bus import EtcdBus
from falcon_operator.bus.census import GatewayPod
from falcon_operator.cluster.certificates import authorities, rotation
from falcon_operator.cluster.certificates.authorities import Authorities
from falcon_operator.cluster.recorder import Recorder
from tests.integration.etcd_server import EtcdServer
from tests.integration.gateway.gateways import GPT, Files, Gateway
from tests.integration.operator.bench import Leadership
from tests.integration.operator.cluster import until_async
from tests.integration.pki import Issued
from tests.integration.sockets import connections_to
from tests.world.secrets import Secrets

NAMESPACE, ETCD, CONTROL, JOBS = "falcon", "falcon-etcd", "falcon-etcd-ca", "falcon-jobs-ca"
SPREAD_SECONDS, OVERLAP_SECONDS, LOOK_SECONDS, KUBELET_SECONDS = 12.0, 25.0, 1.0, 0.5
REPORT_SECONDS = 0.2
# A report is lost for no longer than the pauses between tries (2 s), and what a busy machine adds.
LONGEST_GAP_SECONDS = 6.0


class Api(Secrets):
    """Secrets, Events, and the pod of etcd, which ends where it is deleted."""

    def __init__(self, etcd: EtcdServer, mount: Path) -> None:
        super().__init__()
        self._etcd = etcd
        self._mount = mount
        self.events: list[dict[str, Any]] = []
        self.restarts = 0
        self._created = dt.datetime.now(dt.UTC)

    async def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None, **_: Any
    ) -> bytes:
        if path.endswith("/events"):
            self.events.append(body)
            return b"{}"
        if path.endswith("/pods"):
            created = self._created.strftime("%Y-%m-%dT%H:%M:%SZ")
            meta = {"name": "etcd-x", "uid": str(self.restarts), "creationTimestamp": created}
            return json.dumps({"items": [{"metadata": meta}]}).encode()
        if path.endswith("/pods/etcd-x"):
            assert method == "DELETE"
            self.restarts += 1
            self._created = dt.datetime.now(dt.UTC)
            self._etcd.kill()
            mount(self, f"{ETCD}-server", self._mount)  # a pod that begins reads its Secrets as they are
            self._etcd.start()
            return b"{}"
        return await super().call(method, path, query=query, body=body)


def mount(api: Api, name: str, folder: Path) -> None:
    """Write a Secret's files, each of them whole, where they have changed."""
    write(folder, api.files(NAMESPACE, name))


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for file, content in files.items():
        target = folder / file
        if not target.exists() or target.read_bytes() != content:
            fresh = folder / f".{file}"
            fresh.write_bytes(content)
            fresh.replace(target)


class Agent:
    """An agent that reports ever higher numbers; ``restless``: each second by a connection of its own."""

    def __init__(self, index: int, gateway: Gateway, folder: Path, *, restless: bool) -> None:
        self.pod = GPT.pod(index)
        self.sequence = 0
        self._gateway = gateway
        self._tls = Tls(ca=folder / "ca.crt", cert=folder / "tls.crt", key=folder / "tls.key")
        self._restless = restless

    async def run(self) -> None:
        while True:
            client = AgentClient([self._gateway.agents], self._tls, self.pod, lambda _: None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0 if self._restless else None), asyncio.TaskGroup() as tasks:
                    tasks.create_task(client.run())
                    tasks.create_task(self._report(client))

    async def _report(self, client: AgentClient) -> None:
        while True:
            self.sequence += 1
            stamp = time.time_ns()
            summary = Summary(pod_uid=self.pod.pod_uid, sequence=self.sequence, unix_ns=stamp, generation=1)
            client.report(encode_summary(summary, ()), urgent=True)
            await asyncio.sleep(REPORT_SECONDS)


class Installation:
    """All parts together. ``gap`` is the longest time in which the operator has heard nothing new of an agent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        server, self.agents_folder = root / "server", root / "agents"
        (root / "etcd").mkdir()
        pki = SimpleNamespace(
            ca=server / "ca.crt",
            server=lambda _: Issued(server / "tls.crt", server / "tls.key"),
            client=lambda _: Issued(root / "root" / "tls.crt", root / "root" / "tls.key"),
        )
        self.etcd = EtcdServer(root / "etcd", pki=pki)  # type: ignore[arg-type]
        self.api = Api(self.etcd, server)
        files = Files(root / "gateway", root / "gateway" / "jobs-ca.crt", root / "root")
        self.gateway = Gateway(root, "gateway-0", files, self.etcd)
        settings: Any = SimpleNamespace(
            namespace=NAMESPACE,
            etcd_endpoints=tuple(f"https://{endpoint}" for endpoint in self.etcd.endpoints),
            etcd_secret_prefix=ETCD,
            gateway_secret_prefix="falcon",
            etcd_selector="app=etcd",
            etcd_managed=True,
            etcd_server_names=("localhost",),
            gateway_names=("localhost",),
            anomaly_names=(),
        )
        clock = SystemClock()
        api: Any = self.api
        recorder = Recorder(api, NAMESPACE, "op", clock)
        (root / "own").mkdir()
        self.authorities = Authorities(settings, api, recorder, clock, root / "own")
        self.agents = [Agent(n, self.gateway, self.agents_folder, restless=n > 0) for n in range(2)]
        self.gaps = [0.0, 0.0]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run everything; wait until both agents are heard."""
        etcd_tls, gateway_tls = await self.authorities.load()
        self._mount()
        self.etcd.start()
        self.gateway.start()
        async with Client(self.etcd.endpoints, etcd_tls, 2.0) as client:
            self.bus = EtcdBus(
                client,
                gateway_tls,
                Leadership(1),
                self.authorities,
                SystemClock(),
                identity="op",
                on_change=lambda *_: None,
                on_restored=lambda: None,
                live_jobs=self._live,
                gateway_pods=lambda: {self.gateway.name: GatewayPod(self.gateway.name, self.gateway.operator, True)},
            )
            write(self.agents_folder, self.bus.agent_credentials(GPT.uid))
            self.bus.announce(GPT.key, frozenset(GPT.pod(index).pod_uid for index in range(2)), 1)
            parts = [self.bus.run(), self.authorities.run(), self._kubelet(), *(each.run() for each in self.agents)]
            tasks = [asyncio.create_task(part) for part in parts]
            try:
                await self.heard_again()
                watching = asyncio.create_task(self._watch())
                tasks.append(watching)
                yield
                for task in tasks:
                    assert not task.done(), task
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self, uids: frozenset[str]) -> frozenset[str]:
        return uids

    async def _kubelet(self) -> None:
        while True:
            await asyncio.sleep(KUBELET_SECONDS)
            self._mount()
            write(self.agents_folder, self.bus.agent_credentials(GPT.uid))

    def _mount(self) -> None:
        for name, folder in ((f"{ETCD}-server", "server"), (f"{ETCD}-root", "root"), ("falcon-gateway-tls", "gateway")):
            with contextlib.suppress(KeyError):  # deleted: what is mounted stays
                mount(self.api, name, self.root / folder)

    def heard(self) -> list[int]:
        """Return the number of each agent's newest report at the operator."""
        summaries = self.bus.reports(GPT.uid).summaries
        found = [summaries.get(agent.pod.pod_uid) for agent in self.agents]
        return [-1 if each is None else each.summary.sequence for each in found]

    async def heard_again(self) -> None:
        """Wait for reports of all agents that are made from now on, and for etcd."""
        since = [agent.sequence for agent in self.agents]
        await until_async(lambda: all(new > old for new, old in zip(self.heard(), since, strict=True)))
        await until_async(lambda: self.bus.etcd_healthy)

    async def all_connect_again(self) -> None:
        """End the gateway and start it again: it, its agents and the operator make all connections again."""
        await self.gateway.end()
        self.gateway.start()
        await self.heard_again()
        self.forget_gaps()

    def forget_gaps(self) -> None:
        self.gaps = [0.0, 0.0]

    async def _watch(self) -> None:
        newest, since = self.heard(), [time.monotonic()] * 2
        while True:
            await asyncio.sleep(0.05)
            for index, number in enumerate(self.heard()):
                now = time.monotonic()
                self.gaps[index] = max(self.gaps[index], now - since[index])
                if number != newest[index]:
                    newest[index], since[index] = number, now

    def connections(self) -> set[str]:
        """Return the connections to etcd and to the gateway, by their clients' addresses."""
        return connections_to(*self.etcd.endpoints, self.gateway.agents, self.gateway.operator)

    def issuers(self) -> set[bytes]:
        """Return the control authorities that have signed what etcd, gateways and operator show."""
        control = certs.authorities(self.authorities.control, dt.datetime.now(dt.UTC))
        found = set()
        for name in (f"{ETCD}-server", f"{ETCD}-root", "falcon-gateway-tls"):
            files = self.api.files(NAMESPACE, name)
            pair = certs.Pair(files["tls.crt"], files["tls.key"])
            found |= {each for each in control if "signed" not in certs.problem(pair, each, dt.datetime.now(dt.UTC))}
        return found


@pytest.fixture
def compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let minutes pass in seconds."""
    monkeypatch.setattr(rotation, "SPREAD_SECONDS", SPREAD_SECONDS)
    monkeypatch.setattr(rotation, "OVERLAP_SECONDS", OVERLAP_SECONDS)
    monkeypatch.setattr(authorities, "LOOK_SECONDS", LOOK_SECONDS)
    monkeypatch.setattr(authorities, "RESTART_SECONDS", 0.0)


@pytest.fixture
async def installation(tmp_path: Path, compressed: None) -> AsyncIterator[Installation]:
    built = Installation(tmp_path)
    try:
        yield built
    finally:
        if built.gateway.process is not None:
            built.gateway.process.kill()
            built.gateway.process.wait()
        built.etcd.kill()


async def test_a_control_authority_that_is_deleted_is_replaced_without_losing_a_report(
    installation: Installation,
) -> None:
    async with installation.running():
        former = installation.authorities.control
        installation.api.delete(NAMESPACE, CONTROL)
        await until_async(lambda: installation.authorities.control != former)
        assert installation.issuers() == set(certs.authorities(former, dt.datetime.now(dt.UTC)))
        await until_async(lambda: installation.authorities.notes)
        [note] = installation.authorities.notes
        assert "AuthorityReplaced" in note
        assert CONTROL in note
        await installation.all_connect_again()  # while certificates are by the former authority
        await until_async(lambda: installation.api.restarts)
        await until_async(lambda: former not in b"".join(installation.issuers()))
        assert installation.api.restarts == 1, "etcd has read both authorities, before anything was signed by the new"
        gaps = list(installation.gaps)
        await installation.all_connect_again()  # by certificates of the new authority
        await until_async(lambda: former not in installation.authorities.control)
        await installation.all_connect_again()  # when the former authority is forgotten
        assert max(gaps) < LONGEST_GAP_SECONDS, gaps
        assert installation.authorities.notes == ()
    [event] = [each for each in installation.api.events if each["reason"] == "CertificateMissing"]
    assert (event["type"], event["involvedObject"]["name"]) == ("Warning", CONTROL)


async def test_no_connection_outlives_an_authority_that_may_be_known_to_others(installation: Installation) -> None:
    """Two changes end all that the first authority has vouched for, also for its thief, and no report is lost."""
    async with installation.running():
        former, rested = installation.authorities.control, set[str]()
        async with _operator_of_former_files(installation) as thief:
            for _ in range(2):
                newest = installation.authorities.control
                installation.api.delete(NAMESPACE, CONTROL)
                await until_async(lambda newest=newest: installation.authorities.control != newest)

                def is_replaced() -> bool:
                    """Note what is connected while the first authority signs."""
                    if former in installation.issuers():
                        rested.update(installation.connections())
                    return len(installation.issuers()) == 1 and not installation.authorities.notes

                await until_async(is_replaced, every=0.5)  # the parts run in this loop, which must not be kept busy
            await until_async(lambda: former not in installation.authorities.control)
            await until_async(lambda: not rested & installation.connections(), every=0.5)
            await until_async(lambda: thief.hello is None)
            await asyncio.sleep(3)  # longer than the pause between two tries
            assert thief.hello is None, "the gateway has ended the stream, and refuses another"
            await installation.heard_again()
            assert max(installation.gaps) < LONGEST_GAP_SECONDS, installation.gaps


@contextlib.asynccontextmanager
async def _operator_of_former_files(installation: Installation) -> AsyncIterator[OperatorClient]:
    """Connect to the gateway as the operator does, with its files as they are now, for as long as that is served."""
    folder = installation.root / "stolen"
    mount(installation.api, f"{ETCD}-root", folder)
    tls = Tls(folder / "ca.crt", folder / "tls.crt", folder / "tls.key", "localhost")
    client = OperatorClient(installation.gateway.operator, tls, Desired(), Leader("op", 1), lambda _: None)
    task = asyncio.create_task(client.run())
    try:
        await until_async(lambda: client.complete)
        yield client
        assert not task.done(), task
    finally:
        task.cancel()


async def test_no_agent_outlives_the_authority_of_its_job(installation: Installation) -> None:
    async with installation.running():
        former, third = installation.authorities.jobs_trusted, GPT.pod(2)
        installation.bus.announce(GPT.key, frozenset(GPT.pod(index).pod_uid for index in range(3)), 1)
        folder = installation.root / "stolen"
        write(folder, installation.bus.agent_credentials(GPT.uid))
        tls = Tls(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
        thief = AgentClient([installation.gateway.agents], tls, third, lambda _: None)
        task = asyncio.create_task(thief.run())
        try:
            await until_async(lambda: thief.gateway)
            installation.api.delete(NAMESPACE, JOBS)
            await until_async(lambda: installation.authorities.jobs_trusted != former)
            await until_async(lambda: former not in installation.authorities.jobs_trusted)
            await until_async(lambda: thief.trouble)
            assert not thief.gateway
            assert not task.done()
            assert max(installation.gaps) < LONGEST_GAP_SECONDS, installation.gaps
        finally:
            task.cancel()


async def test_a_jobs_authority_that_is_due_is_replaced_without_losing_a_report(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with installation.running():
        former = installation.authorities.jobs.cert
        agents = (installation.agents_folder / "tls.crt").read_bytes()
        problem = certs.problem

        def due(pair: certs.Pair, authority: bytes, now: dt.datetime, **names: Any) -> str:
            return (
                "it is time to renew it" if pair.cert == authority == former else problem(pair, authority, now, **names)
            )

        monkeypatch.setattr(certs, "problem", due)
        await until_async(lambda: installation.authorities.jobs_trusted != former)
        assert installation.authorities.jobs.cert == former
        assert installation.api.files(NAMESPACE, JOBS)["former.crt"] == former
        await until_async(lambda: installation.authorities.jobs.cert != former)
        await until_async(lambda: (installation.agents_folder / "tls.crt").read_bytes() != agents)
        await until_async(lambda: former not in installation.authorities.jobs_trusted)
        gaps = list(installation.gaps)
        await installation.all_connect_again()
        assert max(gaps) < LONGEST_GAP_SECONDS, gaps
        assert installation.api.restarts == 0, "etcd does not know the jobs' authority"


@pytest.mark.parametrize("life_seconds", [40, pytest.param(120, marks=pytest.mark.slow)])
async def test_a_job_outlives_its_certificates_and_keeps_its_agents(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, life_seconds: int
) -> None:
    monkeypatch.setattr(certs, "LEAF_DAYS", life_seconds / 86_400)
    monkeypatch.setattr(certs, "BACKDATE", dt.timedelta())
    began = time.monotonic()
    async with installation.running():
        first = installation.bus.agent_credentials(GPT.uid)
        write(installation.root / "first", first)
        await asyncio.sleep(began + 2.1 * life_seconds - time.monotonic())
        gaps = list(installation.gaps)
        assert certs.expires_unix(first["tls.crt"]) < time.time()
        assert min(installation.authorities.expiries.values()) > time.time()
        await installation.all_connect_again()
        assert max(gaps) < LONGEST_GAP_SECONDS, gaps
        # Without the renewal, the agents would have been refused.
        assert not await _accepts(installation, installation.root / "first")
        assert await _accepts(installation, installation.agents_folder)


async def _accepts(installation: Installation, folder: Path) -> bool:
    """Return whether the gateway accepts an agent with these files: it answers the handshake by no alert."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    host, _, port = installation.gateway.agents.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        try:
            return bool(await asyncio.wait_for(reader.read(1), 5))
        finally:
            writer.close()
    except (ssl.SSLError, ConnectionError):
        return False
