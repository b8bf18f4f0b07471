"""Real gateways before a real etcd, with certificates made by the operator's own functions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from falcon_core.wire.keys import REPORTS, JobKey
from falcon_etcd import Client
from falcon_gateway import (
    AgentClient,
    Announce,
    Batch,
    Desired,
    Entries,
    Leader,
    OperatorClient,
    Pod,
    PodEntry,
    Publish,
    Refused,
    Tls,
)
from tests.integration.etcd_server import EtcdServer
from tests.integration.operator.authority import Authority
from tests.integration.operator.cluster import WAIT_SECONDS, until_async
from tests.integration.pki import Issued
from tests.integration.ports import free_port

BINARY = Path(os.environ.get("GATEWAY_OUT", "")) / "falcon-gateway"
PAGE_KEPT_SECONDS = 1.1  # after that a page of metrics is made anew
_revisions = itertools.count(1)


@dataclass(frozen=True)
class Job:
    """A job as the operator announces it; its pods' uids are p0, p1, … behind the job's name."""

    name: str
    uid: str
    pods: int = 4
    namespace: str = "ns"

    def pod(self, index: int) -> Pod:
        return Pod(self.namespace, self.name, f"{self.name}-p{index}")

    def announcement(self) -> Announce:
        pods = [self.pod(index).pod_uid for index in range(self.pods)]
        return Announce(
            namespace=self.namespace,
            job=self.name,
            job_uid=self.uid,
            pod_uids=pods,
            procs_per_replica=1,
            revision=next(_revisions),
        )

    def plan(self, payload: bytes) -> Publish:
        return self.command("plan", payload)

    def command(self, name: str, payload: bytes) -> Publish:
        return Publish(job_uid=self.uid, name=name, revision=next(_revisions), payload=payload)

    @property
    def key(self) -> JobKey:
        return JobKey(self.namespace, self.name, self.uid)

    @property
    def prefix(self) -> str:
        return self.key.prefix


GPT = Job("gpt", "11111111-1111-4111-8111-111111111111")
BERT = Job("bert", "22222222-2222-4222-8222-222222222222")


@dataclass(frozen=True)
class Files:
    """What a gateway reads: the folders of its certificates, and the authority of its agents."""

    tls: Path
    jobs_authority: Path
    etcd_tls: Path


class Gateway:
    """One process. Its ports stay while it is down."""

    def __init__(
        self,
        root: Path,
        name: str,
        files: Files,
        etcd: EtcdServer,
        ip: str = "127.0.0.1",
        binary: Path = BINARY,
        **environment: str,
    ) -> None:
        self.name = name
        self._binary = binary
        host = f"[{ip}]" if ":" in ip else ip
        self.agents, self.operator, self.pages = (f"{host}:{free_port()}" for _ in range(3))
        self.log = root / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._environment = {
            "FALCON_GATEWAY_ID": name,
            "FALCON_POD_IP": ip,
            "FALCON_AGENTS_LISTEN": self.agents,
            "FALCON_OPERATOR_LISTEN": self.operator,
            "FALCON_PAGES_LISTEN": self.pages,
            "FALCON_TLS_DIR": str(files.tls),
            "FALCON_TLS_SECRET": "falcon-gateway-tls",
            "FALCON_JOBS_AUTHORITY": str(files.jobs_authority),
            "FALCON_ETCD_ENDPOINTS": ",".join(etcd.endpoints),
            "FALCON_ETCD_TLS_DIR": str(files.etcd_tls),
            "FALCON_ETCD_TLS_SECRET": "falcon-etcd-root",
            "FALCON_HANDSHAKES_PER_SECOND": "1000",  # all agents of a test share one address
            **environment,
        }

    def start(self) -> None:
        """Start the process. Raises FileNotFoundError with the remedy."""
        if not self._binary.exists():
            raise FileNotFoundError(f"{self._binary} is missing: run `make gateway`")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(self._binary)], env=self._environment, stdout=log, stderr=log
            )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        """End the process and return its exit code."""
        assert self.process is not None
        self.process.send_signal(by)
        self.process.send_signal(signal.SIGCONT)
        code = await asyncio.to_thread(self.process.wait, 30)
        self.process = None
        return code

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def page(self, path: str) -> str:
        """Return a page of the process; "" if it does not answer with 200."""

        def read() -> str:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self.pages}/{path}", timeout=5) as page:
                return str(page.read().decode())
            return ""

        return await asyncio.to_thread(read)

    async def ready(self) -> None:
        await eventually(lambda: self.page("readyz"))

    async def samples(self) -> list[Sample]:
        """Return all samples of the page of metrics; none if the process does not answer."""
        families = text_string_to_metric_families(await self.page("metrics"))
        return [sample for family in families for sample in family.samples]

    async def counter(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have the given labels, as it is now."""
        await asyncio.sleep(PAGE_KEPT_SECONDS)
        return await self._sum(name, labels)

    async def counted(self, name: str, at_least: float = 1, **labels: str) -> None:
        """Wait until a metric has reached a value."""

        async def reached() -> bool:
            return await self._sum(name, labels) >= at_least

        await eventually(reached)

    async def _sum(self, name: str, labels: dict[str, str]) -> float:
        return sum(
            sample.value
            for sample in await self.samples()
            if sample.name == f"falcon_gateway_{name}" and labels.items() <= sample.labels.items()
        )


@dataclass
class Agent:
    """An honest agent, and the commands that it got."""

    client: AgentClient
    commands: list[bytes] = field(default_factory=list)

    async def connected(self, to: str = "") -> None:
        await until_async(lambda: self.client.gateway and self.client.gateway.startswith(to))

    async def acknowledged(self) -> None:
        """Wait for the receipt of a report on the present stream."""
        await until_async(lambda: self.client.receipt is not None)


@dataclass
class Operator:
    """The leader's stream to one gateway, and what it has learned there."""

    client: OperatorClient
    desired: Desired
    batches: list[Batch]
    entries: dict[str, Entries]

    def entry(self, job: Job, index: int) -> PodEntry | None:
        entries = self.entries.get(job.uid)
        return entries.pods.get(job.pod(index).pod_uid) if entries is not None else None

    async def sees(self, job: Job, index: int, payload: bytes, *, alive: bool = True) -> PodEntry:
        def found() -> PodEntry | None:
            entry = self.entry(job, index)
            return entry if entry is not None and (entry.payload, entry.alive) == (payload, alive) else None

        answer = await until_async(found)
        assert isinstance(answer, PodEntry)
        return answer


class Certificates(Authority):
    """An authority whose certificates are made once: processes that start read their files meanwhile."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._issued: dict[str, Issued] = {}

    def server(self, host: str) -> Issued:
        if host not in self._issued:
            self._issued[host] = super().server(host)
        return self._issued[host]

    def client(self, user: str) -> Issued:
        if user not in self._issued:
            self._issued[user] = super().client(user)
        return self._issued[user]


class Site:
    """An etcd, two authorities, and gateways."""

    def __init__(self, root: Path, *, etcd: Sequence[str] = ()) -> None:
        """Make the authorities; ``etcd`` are further arguments of etcd."""
        self.root = root
        self.control = Certificates(root / "control")
        self.jobs = Certificates(root / "jobs")
        etcd_root = root / "etcd"
        etcd_root.mkdir()
        self.etcd = EtcdServer(etcd_root, pki=self.control, arguments=etcd)  # type: ignore[arg-type]
        self.gateways: list[Gateway] = []

    def gateway(self, ip: str = "127.0.0.1", *, name: str = "localhost", **environment: str) -> Gateway:
        """Start another gateway, whose pod has this address; ``name``: in its certificate."""
        files = Files(
            tls=self.control.server(name).cert.parent,
            jobs_authority=self.jobs.ca,
            etcd_tls=self.control.client("root").cert.parent,
        )
        gateway = Gateway(self.root, f"gateway-{len(self.gateways)}", files, self.etcd, ip, **environment)
        self.gateways.append(gateway)
        gateway.start()
        return gateway

    def tls(self, authority: Authority, common_name: str) -> Tls:
        issued = authority.client(common_name)
        return Tls(ca=self.control.ca, cert=issued.cert, key=issued.key)

    def stop(self) -> None:
        """End all processes. Raises AssertionError where a gateway's log shows a fault of its own."""
        for gateway in self.gateways:
            if gateway.process is not None:
                gateway.process.kill()
                gateway.process.wait()
        self.etcd.kill()
        for gateway in self.gateways:
            log = gateway.log.read_text()
            assert "panic" not in log, log
            assert "DATA RACE" not in log, log  # where the binary was built with the race detector

    def client(self) -> Client:
        """Return an etcd client with the operator's certificate."""
        return self.etcd.client("root")

    @contextlib.asynccontextmanager
    async def agent(self, job: Job, index: int, *gateways: Gateway) -> AsyncIterator[Agent]:
        """Run an honest agent of a pod."""
        commands: list[bytes] = []
        client = AgentClient(
            [gateway.agents for gateway in gateways or self.gateways],
            self.tls(self.jobs, job.uid),
            job.pod(index),
            lambda command: commands.append(command.payload),
        )
        async with _running(client.run()):
            yield Agent(client, commands)

    @contextlib.asynccontextmanager
    async def leader(self, gateway: Gateway, *jobs: Job, epoch: int = 1) -> AsyncIterator[Operator]:
        """Run the operator's stream to a gateway, with some jobs announced."""
        desired = Desired()
        for job in jobs:
            desired.announce(job.announcement())
        desired.all_announced()
        batches: list[Batch] = []
        entries: dict[str, Entries] = {}

        def take(batch: Batch) -> None:
            batches.append(batch)
            entries.setdefault(batch.job_uid, Entries()).merge(batch)

        tls = self.tls(self.control, "root")
        client = OperatorClient(gateway.operator, tls, desired, Leader("operator-0", epoch), take)
        async with _running(client.run()):
            yield Operator(client, desired, batches, entries)

    async def stored(self, client: Client, job: Job) -> Entries:
        """Return what etcd holds of a job, from all gateways."""
        entries = Entries()
        for kv in (await client.get_prefix(REPORTS)).kvs:
            if f"/{job.uid}/" in kv.key:
                entries.merge(Batch.FromString(kv.value))
        return entries

    async def stores(self, client: Client, job: Job, index: int, payload: bytes, *, alive: bool = True) -> None:
        """Wait until etcd holds a report of a pod."""

        async def found() -> bool:
            entry = (await self.stored(client, job)).pods.get(job.pod(index).pod_uid)
            return entry is not None and (entry.payload, entry.alive) == (payload, alive)

        await eventually(found)


async def eventually(true: Callable[[], Awaitable[object]], *, seconds: float = WAIT_SECONDS) -> None:
    """Ask until the answer is true. Raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await true():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still not after {seconds:.0f} s: {true}")


@contextlib.asynccontextmanager
async def _running(work: Coroutine[None, None, NoReturn]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
        if task.done():
            with contextlib.suppress(Refused):  # a former leader is
                task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def running_site(root: Path) -> Iterator[Site]:
    """Run an etcd and a gateway in a new folder."""
    root.mkdir(parents=True)
    site = Site(root)
    site.etcd.start()
    site.gateway()
    try:
        yield site
    finally:
        site.stop()
