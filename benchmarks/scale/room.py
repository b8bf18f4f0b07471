"""A room for a measurement: real etcd, kube-apiserver, operator and gateway; agents that are played over real TLS.

Scheduler, kubelets and launchers are played as well (``kubelet``, ``training``); jobs, pods and nodes are API objects.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.scale import agents, crowd
from benchmarks.scale.kubelet import Kubelets
from benchmarks.scale.processes import child
from benchmarks.scale.training import SECOND, Pod, Training
from falcon_core.wire.keys import JobKey
from tests.integration.api.apiserver import ApiServer, binary, running_store, serving
from tests.integration.etcd_server import EtcdServer
from tests.integration.gateway.gateways import Files, Gateway
from tests.integration.operator.cluster import CRDS, Installation, Operator, until_async
from tests.integration.ports import free_port

SYSTEM: Final = "falcon-system"
WAIT_SECONDS: Final = 900.0
LEAD_SECONDS: Final = 0.5  # reports are handed over so long before they are due
CONNECTIONS_PER_SECOND: Final = 100
RETENTION_SECONDS: Final = 60
ETCD_ARGUMENTS: Final = (  # as the chart's defaults
    *("--quota-backend-bytes", str(2 << 30)),
    *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", f"{RETENTION_SECONDS}s"),
)
_LAST_LINES: Final = 20
Body = dict[str, Any]


def say(text: str) -> None:
    """Tell whoever waits how far the measurement is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Room:
    """The installation, and the jobs that train in it."""

    def __init__(
        self, api: ApiServer, installation: Installation, kubelets: Kubelets, programs: Path, slower: float = 1.0
    ) -> None:
        self.api = api
        self.kubelets = kubelets
        self.folder = installation.folder
        self._installation = installation
        self._programs = programs
        self.slower = slower
        self.agents = agents.Agents(programs / "falcon-agents", self.folder / "agents.csv", self._take, slower)
        self.trainings: dict[str, Training] = {}  # by job name
        self._of_agent: dict[int, Training] = {}
        self.nodes: dict[str, str] = {}  # by pod uid
        self._playing: asyncio.Task[None] | None = None

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def etcd(self) -> EtcdServer:
        return self._installation.etcd

    @property
    def operator(self) -> Operator:
        return self._installation.operators[-1]

    @property
    def pids(self) -> dict[str, int]:
        """Return the processes that cost something: those that are measured, and those that are counted apart."""
        [etcd] = self.etcd.members
        assert etcd.process is not None
        assert self.operator.process is not None
        return {
            "gateway": self.gateway.pid,
            "etcd": etcd.process.pid,
            "operator": self.operator.process.pid,
            "agents": self.agents.pid,
            "kube-apiserver": child("kube-apiserver"),
            "its etcd": child("etcd", but=etcd.process.pid),
        }

    async def start(self, **environment: str) -> None:
        """Start operator, etcd and gateway."""
        operator = self._installation.operator(
            "op",
            FALCON_WATCH_NAMESPACES="",
            FALCON_LOG_LEVEL="info",
            FALCON_ETCD_RETENTION_SECONDS=str(RETENTION_SECONDS),
            **environment,
        )
        await asyncio.to_thread(self._installation.start_etcd)
        await until_async(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0, seconds=WAIT_SECONDS)
        tls = self._files("falcon-gateway-tls")
        files = Files(tls, tls / "jobs-ca.crt", self._files("falcon-etcd-root"))
        self.gateway = Gateway(self.folder, "gateway-0", files, self.etcd, binary=self._programs / "falcon-gateway")
        self.gateway.start()
        await until_async(lambda: operator.metric("falcon_gateways_streaming") == 1.0)

    def _files(self, secret: str, namespace: str = SYSTEM) -> Path:
        """Return a folder with a Secret's files, as a volume shows them."""
        folder = self.folder / secret
        folder.mkdir()
        body = self._installation.get("secret", secret, namespace)
        for name, content in body["data"].items():
            (folder / name).write_bytes(base64.b64decode(content))
        return folder

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def begin(self, names: Iterable[str], pods: int, ranks: int, *, mode: str = "Enforce") -> None:
        """Create jobs of so many pods, each with so many ranks, and return when all of them iterate."""
        names = list(names)
        manifests = "\n---\n".join(json.dumps(_job(name, pods, ranks, mode)) for name in names)
        await asyncio.to_thread(self.api.ok, "kubectl", "create", "-f", "-", stdin=manifests)
        bodies = await self._made(len(names) * pods)
        await self.kubelets.run(bodies)
        for body in await asyncio.to_thread(self._jobs):
            name, uid = body["metadata"]["name"], body["metadata"]["uid"]
            if name in names:
                self.trainings[name] = Training(JobKey(crowd.NAMESPACE, name, uid), self.agents, ranks, self.slower)
        await self._connect(bodies)
        self._placed()
        await self.until(lambda: all(self.trainings[name].running() == pods for name in names))
        say(f"{len(names)} jobs of {pods} pods run")

    async def _made(self, count: int) -> list[Body]:
        """Wait until the operator has made the pods; return them."""
        path = f"/api/v1/namespaces/{crowd.NAMESPACE}/pods"
        await self.until(lambda: crowd.count(self.api, path) >= len(self._of_agent) + count, every=3.0)
        say(f"{count} pods made")
        return await asyncio.to_thread(self.kubelets.waiting)

    async def _connect(self, bodies: list[Body]) -> None:
        """Let the pods' agents connect, one after the other, each as soon as its node runs it."""
        folders: dict[str, Path] = {}
        begin_ns = time.time_ns()
        for index, body in enumerate(bodies):
            job = body["metadata"]["labels"]["falcon.dev/job"]
            if job not in folders:
                folders[job] = await asyncio.to_thread(self._files, f"{job}-falcon-gateway", crowd.NAMESPACE)
            at_ns = begin_ns + index * SECOND // CONNECTIONS_PER_SECOND
            uid, training = body["metadata"]["uid"], self.trainings[job]
            number = self.agents.add(
                namespace=crowd.NAMESPACE,
                job=job,
                pod_uid=uid,
                endpoint=self.gateway.agents,
                tls=folders[job],
                at_ns=at_ns,
            )
            self._of_agent[number] = training
            training.add(uid, number, at_ns)
        await self.agents.drain()
        await self.until(lambda: (self.operator.metric("falcon_agents") or 0) >= len(self._of_agent), every=1.0)
        say(f"{len(self._of_agent)} agents are connected")

    def _placed(self) -> None:
        """Note where the pods run."""
        self.nodes = {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in self._listed("pods")}

    def _jobs(self) -> list[Body]:
        return list(self._installation.get("trainingjobs", namespace=crowd.NAMESPACE))

    def _listed(self, kind: str) -> list[Body]:
        path = f"/api/v1/namespaces/{crowd.NAMESPACE}/{kind}"
        return list(json.loads(self.api.ok("kubectl", "get", "--raw", path))["items"])

    def _take(self, command: agents.Command) -> None:
        self._of_agent[command.agent].take(command)

    def of(self, pod: Pod) -> Training:
        """Return the pod's job."""
        return self._of_agent[pod.agent]

    @contextlib.asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """Let all jobs report meanwhile."""
        self._playing = asyncio.create_task(self._play(), name="play")
        try:
            yield
        finally:
            self._playing.cancel()
            await asyncio.wait({self._playing})

    async def _play(self) -> None:
        second = time.time_ns() // SECOND + 1
        while True:
            for training in list(self.trainings.values()):
                training.second(second * SECOND)
                await asyncio.sleep(0)
            await self.agents.drain()
            second += 1
            await asyncio.sleep(second - LEAD_SECONDS - time.time())

    async def until(self, true: Callable[[], object], *, seconds: float = WAIT_SECONDS, every: float = 0.5) -> None:
        """Wait until something is true.

        Raises what ``check`` raises.
        """

        def reached() -> bool:
            self.check()
            return bool(true())

        await until_async(reached, seconds=seconds, every=every)

    def check(self) -> None:
        """Raise RuntimeError when the operator has ended, as one does that starves, and what ended the playing."""
        self.agents.check()
        if self._playing is not None and self._playing.done():
            self._playing.result()
        process = self.operator.process
        if process is None or process.poll() is not None:
            raise RuntimeError("the operator has ended")

    # -- what is seen ------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def watch(self, kind: str, take: Callable[[Body], None]) -> AsyncIterator[None]:
        """Call ``take`` with each version of each object of a kind, as it comes."""
        path = f"/apis/falcon.dev/v1alpha1/namespaces/{crowd.NAMESPACE}/{kind}?watch=true"
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", binary("kubectl"), "get", "--raw", path),
            stdout=asyncio.subprocess.PIPE,
            env={"KUBECONFIG": str(self.api.kubeconfig), "PATH": "/usr/bin:/bin"},
            limit=64 << 20,
        )
        assert process.stdout is not None
        lines = process.stdout

        async def read() -> None:
            while line := await lines.readline():
                take(msgspec.json.decode(line)["object"])

        task = asyncio.create_task(read(), name=f"watch {kind}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            process.kill()
            await process.wait()


def _job(name: str, pods: int, ranks: int, mode: str) -> Body:
    template = {"spec": {"containers": [{"name": "trainer", "image": "x:1", "command": ["python", "train.py"]}]}}
    return {
        "apiVersion": "falcon.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": crowd.NAMESPACE},
        "spec": {"replicas": pods, "procsPerReplica": ranks, "mitigation": {"mode": mode}, "template": template},
    }


@contextlib.asynccontextmanager
async def room(programs: Path, folder: Path, *, slower: float = 1.0, **environment: str) -> AsyncIterator[Room]:
    """Yield a room whose operator leads and whose gateway serves.

    ``slower``: how many times as long as real agents the played agents wait between two beats and two reports.
    ``environment`` is the operator's.
    """
    with running_store() as store, serving(store, free_port()) as api:
        await asyncio.to_thread(_prepare, api)
        installation = Installation(api, SYSTEM, folder)
        installation.etcd = EtcdServer(folder, arguments=ETCD_ARGUMENTS)
        found = Room(api, installation, Kubelets(api, store), programs, slower)
        try:
            await found.start(**environment)
            async with found.agents, found.playing():
                yield found
        except Exception:
            say("the operator said last:\n" + "\n".join(found.operator.log.read_text().splitlines()[-_LAST_LINES:]))
            raise
        finally:
            if hasattr(found, "gateway"):
                found.gateway.send(signal.SIGKILL)
            installation.stop()


def _prepare(api: ApiServer) -> None:
    api.ok("kubectl", "apply", "--server-side", "-f", str(CRDS))
    api.ok("kubectl", "wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
    for namespace in (SYSTEM, crowd.NAMESPACE):
        api.ok("kubectl", "create", "namespace", namespace)
