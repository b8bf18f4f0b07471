"""Measure where the time of a restart goes: from a killed rank of three pods to the next step of all, phase by phase.

It needs ``make venv shim gateway cluster-build torch-venv``, and no cluster. Real are the operator's reconciler, queue
and bus, etcd, the API server, gateway, agents, launchers and PyTorch. The pods are processes on this machine, without
containers or a kubelet, so that nothing but Falcon's own way is measured. SHIM_OUT, GATEWAY_OUT and FALCON_CACHE say
where ``make`` put what it built. Seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from evaluation.harness import Table
from falcon_core.wire.keys import JobKey
from falcon_core.wire.launcher.launch import LaunchStatus, Standby
from falcon_core.wire.reporting.messages import Plan
from falcon_operator.api.common import API_VERSION, LABEL_JOB
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.trainingrun import TrainingRun, TrainingRunSpec
from falcon_operator.base.clock import SystemClock
from falcon_operator.base.keys import Key, job_key
from falcon_operator.base.ports import PodSettings, PodView
from falcon_operator.cluster.client import KubeClient
from falcon_operator.cluster.transport import MERGE_PATCH, Transport, path_of
from falcon_operator.job.reconciler import JobReconciler
from falcon_operator.runtime.leader import PAUSE_SECONDS
from falcon_operator.runtime.workqueue import KeyedQueue, work
from tests.e2e.campaigns.measure.standby import AGENT, LEAST_STEPS, PROGRAM, Ranks
from tests.integration.agent.pod import PYTHON, AgentPod, credentials, start_agent
from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.operator.bench import Bench, Session
from tests.integration.operator.cluster import CRDS, Installation
from tests.integration.operator.played import add_node, connected
from tests.integration.shim.launching import Launcher
from tests.world.running import Metrics

NAMESPACE: Final = "phases"
JOB: Final = "gpt2"
REPLICAS: Final = 3
WINDOW_SECONDS: Final = 60.0  # of the job's budget: an older kill holds no restart back
PATIENCE_SECONDS: Final = 300.0
RUNS: Final = 3  # kills of each kind
KINDS: Final[tuple[Standby, ...]] = ("Processes", "Imports", "None")
PHASES: Final = (
    "the launcher has noticed the end",
    "the operator knows it",
    "the intent is stored",
    "the plan to stop is out",
    "the last launcher has it",
    "the last launcher's processes are dead",
    "the operator knows that",
    "the intent to run is stored",
    "the plan to run is out",
    "the last rank is started or released",
    "all ranks have done a step",
)


class Marks:
    """When what has happened first, by name (unix seconds)."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def note(self, name: str, at: float | None = None) -> None:
        self.at.setdefault(name, time.time() if at is None else at)

    def note_if(self, holds: bool, name: str) -> None:
        if holds:
            self.note(name)


class TappedKube:
    """The operator's client of the API server, which notes when an intent is stored."""

    def __init__(self, kube: KubeClient, marks: Marks) -> None:
        self._kube, self._marks = kube, marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kube, name)

    async def write_run(self, job: TrainingJob, before: TrainingRun | None, spec: TrainingRunSpec) -> TrainingRun:
        stored = await self._kube.write_run(job, before, spec)
        self._marks.note(f"stored {spec.generation} {spec.phase}")
        return stored


class TappedBus:
    """The operator's bus, which notes when a plan is out, and what is known of the pods."""

    def __init__(self, session: Session, marks: Marks) -> None:
        self._session, self._marks = session, marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session.bus, name)

    async def publish_plan(self, key: JobKey, plan: Plan) -> None:
        await self._session.bus.publish_plan(key, plan)
        self._marks.note(f"plan {plan.generation} {plan.phase}")

    def look(self, uid: str) -> None:
        """Note what the reports say that have come by now."""
        found = [received.summary.launch for received in self._session.bus.reports(uid).summaries.values()]
        known = [launch for launch in found if launch is not None]
        for launch in known:
            if launch.state in ("Running", "Exited") and any(rank.state == "Exited" for rank in launch.ranks):
                self._marks.note(f"ended {launch.generation}")
        if len(known) == REPLICAS:
            self._marks.note(f"dead {min(launch.dead_below for launch in known)}")


class Feed(list[JobKey]):
    """News of the bus, which go into the operator's queue."""

    def __init__(self, on_news: Callable[[JobKey], None]) -> None:
        super().__init__()
        self._on_news = on_news

    def append(self, key: JobKey) -> None:
        self._on_news(key)


class Settings:
    """The operator's, as far as the reconciler needs them."""

    namespace = NAMESPACE

    def __init__(self, gateways: str) -> None:
        self.pods = PodSettings(agent_image="agent:1", gateways=gateways)


class Pods:
    """The kubelets: a launcher and an agent for each pod, as processes."""

    def __init__(self, folder: Path, site: Bench, http: Transport, uid: str) -> None:
        self.folder, self._site, self._http, self._uid = folder, site, http, uid
        self.launchers: dict[str, Launcher] = {}
        self._agents: list[subprocess.Popen[bytes]] = []
        python = folder / "python"
        python.mkdir()
        for name in ("falcon_site", "falcon_start", "falcon_bench"):
            (python / name).symlink_to(AGENT / name)
        self._options = ("--python", str(python))
        self._tls = credentials(folder / "tls", site, uid)

    async def start(self, pods: list[PodView]) -> None:
        """Place each new pod on a node of its own, and run it."""
        for pod in sorted(pods, key=lambda each: each.name):
            if pod.name in self.launchers:
                continue
            node = f"node-{len(self.launchers)}"
            path = path_of("v1", "pods", NAMESPACE, pod.name)
            target = {"kind": "Node", "name": node}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name}, "target": target}
            await self._http.call("POST", f"{path}/binding", body=body)
            await self._http.call("PATCH", f"{path}/status", body={"status": _running()}, content_type=MERGE_PATCH)
            command = (str(PYTHON), str(PROGRAM), str(self.folder), "1")
            self.launchers[pod.name] = Launcher(self.folder / pod.name, *command, options=self._options)
            log = self.folder / f"{pod.name}.log"
            agent = AgentPod(pod.name, pod.uid, node, self.folder / pod.name, self._tls, log)
            self._agents.append(start_agent(self._site, JobKey(NAMESPACE, JOB, self._uid), agent))

    def statuses(self) -> list[LaunchStatus]:
        """Return what the launchers say."""
        return [status for launcher in self.launchers.values() if (status := launcher.status()) is not None]

    async def watch(self, marks: Marks, generation: int) -> None:
        """Note what the launchers see of the generation's end, until their processes are dead."""
        after = generation + 1
        while f"were dead {after}" not in marks.at:
            found = self.statuses()
            ranks = [rank for each in found for rank in each.ranks if rank.signal == signal.SIGKILL]
            for rank in ranks:
                marks.note(f"noticed {generation}", (rank.ended_unix_ns or 0) / 1e9)
            marks.note_if(all(each.generation >= after for each in found), f"has {after}")
            marks.note_if(all(each.dead_below >= after for each in found), f"were dead {after}")
            await asyncio.sleep(0.002)

    def stop(self) -> None:
        for process in (*self._agents, *(launcher.process for launcher in self.launchers.values())):
            process.kill()
            process.communicate(timeout=20)


def _running() -> dict[str, Any]:
    state = {"image": "i", "imageID": "i", "ready": True, "restartCount": 0, "state": {"running": {}}}
    return {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "initContainerStatuses": [{"name": "falcon-agent", **state}],
        "containerStatuses": [{"name": "trainer", **state}],
    }


class Rig(NamedTuple):
    """A job that runs, and what is noted of it."""

    pods: Pods
    marks: Marks
    ranks: Ranks


@contextlib.asynccontextmanager
async def a_job(api: ApiServer, folder: Path, standby: Standby) -> AsyncIterator[Rig]:
    """Run a job of three pods under a real reconciler."""
    site, marks = Bench(folder), Marks()
    site.etcd.start()
    site.gateway()
    queue: KeyedQueue[Key] = KeyedQueue(SystemClock(), pause_seconds=PAUSE_SECONDS)
    key = job_key(NAMESPACE, JOB)
    try:
        async with connected(api.kubeconfig, NAMESPACE) as (kube, http):
            job: dict[str, Any] = json.loads(
                await http.call("GET", path_of(API_VERSION, "trainingjobs", NAMESPACE, JOB))
            )
            uid = str(job["metadata"]["uid"])
            session = await site.session()
            session.live = frozenset({uid})
            session.names(*site.gateways)
            bus = TappedBus(session, marks)

            def on_news(_: JobKey) -> None:
                bus.look(uid)
                queue.add(key)

            session.changed = Feed(on_news)
            await session.healthy(streams=1)
            settings = Settings(site.gateways[0].agents)
            reconciler = JobReconciler(TappedKube(kube, marks), bus, settings, Metrics(), SystemClock())  # type: ignore[arg-type]
            pods = Pods(folder, site, http, uid)
            queue.add(key)
            turns = asyncio.create_task(
                work(
                    queue,
                    lambda _: reconciler.reconcile(NAMESPACE, JOB, lambda: queue.is_urgent(key)),
                    lambda *_: None,
                    SystemClock(),
                    2,
                )
            )
            machines = asyncio.create_task(_keep_running(pods, kube))
            try:
                yield Rig(pods, marks, Ranks(folder, REPLICAS))
            finally:
                for task in (turns, machines):
                    task.cancel()
                await asyncio.wait({turns, machines})
                pods.stop()
                await site.close()
    finally:
        site.stop()


async def _keep_running(pods: Pods, kube: KubeClient) -> None:
    while True:
        await pods.start(await kube.list_pods(NAMESPACE, {LABEL_JOB: JOB}))
        await asyncio.sleep(0.2)


async def restart(rig: Rig, generation: int, standby: Standby) -> list[float]:
    """Kill the last rank of the generation; return when each of ``PHASES`` was over, in seconds after the kill."""
    await rig.ranks.trained(generation, LEAST_STEPS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while standby != "None" and not all(each.standby and each.standby.ready for each in rig.pods.statuses()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no standbys: {[each.standby for each in rig.pods.statuses()]}")
        await asyncio.sleep(0.1)
    await asyncio.sleep(WINDOW_SECONDS + 1)
    killed, killed_ns = time.time(), time.monotonic_ns()
    os.kill(rig.ranks.process(generation), signal.SIGKILL)
    watching = asyncio.create_task(rig.pods.watch(rig.marks, generation))
    stepped = killed + await rig.ranks.next_step(generation + 1, killed_ns)
    await watching
    started = max(rank.started_unix_ns for each in rig.pods.statuses() for rank in each.ranks) / 1e9
    at, after = rig.marks.at, generation + 1
    names = [f"noticed {generation}", f"ended {generation}", f"stored {after} Stop", f"plan {after} Stop"]
    names += [f"has {after}", f"were dead {after}", f"dead {after}", f"stored {after} Run", f"plan {after} Run"]
    return [each - killed for each in (*(at[name] for name in names), started, stepped)]


async def measure(api: ApiServer, standby: Standby, runs: int) -> list[list[float]]:
    """Return the phases of so many restarts."""
    with tempfile.TemporaryDirectory(prefix="falcon-phases-") as name:
        async with a_job(api, Path(name), standby) as rig:
            found = []
            for generation in range(1, runs + 1):
                found.append(await restart(rig, generation, standby))
                print(f"standby {standby}: {' '.join(f'{over:.2f}' for over in found[-1])}", flush=True)
            return found


def prepare(installation: Installation, standby: Standby) -> None:
    """Make the job."""
    recovery = {"standby": standby, "restarts": 10, "window": "1m"}
    container = {"name": "trainer", "image": "x:1", "command": ["python", "train.py"]}
    spec = {"replicas": REPLICAS, "template": {"spec": {"containers": [container]}}, "recovery": recovery}
    metadata = {"name": JOB, "namespace": NAMESPACE}
    installation.apply({"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": metadata, "spec": spec})


def table(found: dict[str, list[list[float]]]) -> str:
    """Return the medians of what each phase took, and when it was over, as a Markdown table."""
    lines = ["| over, after the kill | " + " | ".join(f"standby {each}" for each in found) + " |"]
    lines.append("|---|" + "---|" * len(found))
    for place, what in enumerate(PHASES):
        cells = []
        for runs in found.values():
            over = statistics.median(run[place] for run in runs)
            took = statistics.median(run[place] - (run[place - 1] if place else 0.0) for run in runs)
            cells.append(f"{over:.2f} s (+ {took:.2f})")
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def make(options: argparse.Namespace) -> Table:
    """Return when each phase was over, and how long it took, by the kind of standby."""
    found = {}
    for standby in options.standby or KINDS:
        with running_apiserver() as api, tempfile.TemporaryDirectory() as folder:
            api.ok("kubectl", "apply", "--server-side", "-f", str(CRDS))
            api.ok("kubectl", "wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
            api.ok("kubectl", "create", "namespace", NAMESPACE)
            installation = Installation(api, NAMESPACE, Path(folder))
            for number in range(REPLICAS):
                add_node(installation, f"node-{number}", {})
            prepare(installation, standby)
            found[standby] = asyncio.run(measure(api, standby, options.runs or RUNS))
    return Table(table(found))
