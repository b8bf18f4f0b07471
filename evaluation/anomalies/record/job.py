"""Run one real job: a pod of one rank on each machine, with launcher, shim and agent, and the stream of its series."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from evaluation.anomalies.record.machines import GATEWAY, Machine
from evaluation.anomalies.record.scenes import Scene
from evaluation.anomalies.recording import Findings, Lane, Message
from falcon_core.wire.launcher.launch import LaunchStatus
from falcon_core.wire.reporting.messages import Plan, PlanMember
from falcon_core.wire.reporting.reports import decode_summary
from falcon_core.wire.series import Phase, decode_chunk
from falcon_gateway import Chunk, Subscriber
from tests.integration.agent.pod import PYTHON, AgentPod, credentials, start_agent
from tests.integration.gateway.gateways import BINARY, Job, Operator, Site
from tests.integration.ports import free_port
from tests.integration.shim.launching import SHIM

PROGRAM: Final = Path(__file__).with_name("program.py")
AGENT: Final = Path(__file__).parents[3] / "agent"
LATE_SECONDS: Final = 60.0  # of the rank that starts slowly
# Faults that the rank itself brings about; the others are the machine's.
_IN_PROGRAM: Final = frozenset({"memory-leak", "errors", "data-loader", "nan"})


class VoidError(RuntimeError):
    """The error of a run that shows nothing, such as one that never began to train."""


def why_not() -> str:
    """Return what has to be built before a job can run; empty where all is there."""
    missing = [str(path) for path in (SHIM / "falcon-launch", PYTHON, BINARY) if not path.is_file()]
    return f"missing: {', '.join(missing)}: run make shim gateway torch-venv, and set SHIM_OUT and GATEWAY_OUT" * bool(
        missing
    )


class RealJob:
    """Its pods. ``started``: when its plan was published, on the monotonic clock."""

    def __init__(self, folder: Path, site: Site, operator: Operator, scene: Scene, machines: Sequence[Machine]) -> None:
        """Start launchers and agents; the ranks wait for ``start``."""
        self.started = 0.0
        self._folder, self._scene, self._machines, self._operator = folder, scene, machines, operator
        uid = "0b2f8f4e-1d0c-4c1b-9a55-3f6a1f0f5f11"
        self.job = Job("recorded", uid, pods=len(machines))
        self._processes: list[subprocess.Popen[bytes]] = []
        tls = credentials(folder / "tls", site, uid)
        operator.desired.announce(self.job.announcement())
        for place, machine in enumerate(machines):
            self._make_pod(place, machine, site, tls)

    def _make_pod(self, place: int, machine: Machine, site: Site, tls: Path) -> None:
        own, run_dir = self._own(place), self._own(place) / "run"
        (run_dir / "agent").mkdir(parents=True)
        (run_dir / "agent" / "alive").touch()
        if self._scene.fault == "slow-start" and place == self._scene.rank():
            (own / "late").write_text(str(LATE_SECONDS))
        launch = [*machine.pod(), str(SHIM / "falcon-launch"), "run", "--run-dir", str(run_dir), "--python", str(AGENT)]
        program = ["--", str(PYTHON), str(PROGRAM), str(own), self._scene.variant]
        environment = {
            **os.environ,
            "TMPDIR": str(run_dir),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }
        with (own / "output").open("wb") as output:
            started = subprocess.Popen([*launch, *program], stdout=output, stderr=output, env=environment)
        pod = AgentPod(f"recorded-{place}", self._uid(place), f"node-{place}", run_dir, tls, own / "agent.log")
        self._processes += [started, start_agent(site, self.job.key, pod, before=machine.network())]

    def _own(self, place: int) -> Path:
        return self._folder / f"pod-{place}"

    def _uid(self, place: int) -> str:
        return self.job.pod(place).pod_uid

    def start(self) -> None:
        """Let the ranks begin."""
        members = [
            PlanMember(replica=at, pod_uid=self._uid(at), pod_name=f"recorded-{at}", node=f"node-{at}", first_rank=at)
            for at in range(len(self._machines))
        ]
        plan = Plan(
            epoch=1,
            generation=1,
            phase="Run",
            procs_per_replica=1,
            world_size=len(self._machines),
            master_addr=self._machines[0].address,
            master_port=free_port(),
            members=members,
        )
        self._operator.desired.publish(self.job.plan(msgspec.json.encode(plan)))
        self.started = time.monotonic()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def begin_fault(self) -> None:
        """Bring about the scene's fault."""
        fault, rank = self._scene.fault, self._scene.rank()
        place = 0 if rank is None else rank
        machine = self._machines[place]
        if fault in _IN_PROGRAM:
            (self._own(place) / "fault").write_text(fault)
        elif fault == "stopped-rank":
            os.kill(self._pid(place), signal.SIGSTOP)
        else:
            {
                "cpu-thief": machine.steal,
                "cpu-quota": machine.limit,
                "volume": machine.fill,
                "packet-loss": machine.lose_packets,
                "slow-link": machine.slow_link,
            }[fault]()

    def _pid(self, place: int) -> int:
        status = (self._own(place) / "run/launch/status.json").read_bytes()
        return msgspec.json.decode(status, type=LaunchStatus).ranks[0].pid

    def check(self) -> None:
        """Raise VoidError where a process of the job has ended by itself."""
        for process in self._processes:
            if process.poll() is not None:
                raise VoidError(f"{process.args[-3:]} ended with {process.returncode}")  # type: ignore[index]


class Listener:
    """What is heard of a job from its start on."""

    def __init__(self, job: RealJob, operator: Operator) -> None:
        self.lane = Lane([], [])
        self.trains: set[str] = set()  # pods that have trained
        self._job, self._operator = job, operator
        self._known: dict[str, list[tuple[str, int, str]]] = {}

    def hear(self, chunk: Chunk) -> None:
        """Keep a message of the lane."""
        self.lane.messages.append(Message(self._now_ms(), chunk.SerializeToString(deterministic=True)))
        if Phase.TRAINING in decode_chunk(chunk.payload).phases:
            self.trains.add(chunk.pod_uid)

    def look(self) -> None:
        """Keep what the agents' newest reports say, where it has changed."""
        for place in range(self._job.job.pods):
            entry = self._operator.entry(self._job.job, place)
            if entry is None or not entry.payload:
                continue
            uid = self._job.job.pod(place).pod_uid
            anomalies = decode_summary(entry.payload, uid).anomalies
            known = [(each.kind, each.rank, each.metric) for each in anomalies]
            if known != self._known.get(uid, []):
                self._known[uid] = known
                self.lane.findings.append(Findings(self._now_ms(), uid, anomalies))

    def _now_ms(self) -> int:
        return round(1e3 * (time.monotonic() - self._job.started))


@contextlib.asynccontextmanager
async def running(folder: Path, scene: Scene, machines: Sequence[Machine]) -> AsyncIterator[tuple[RealJob, Listener]]:
    """Yield a job that has begun, and its listener; all of it has ended afterwards."""
    with contextlib.ExitStack() as ends:
        (folder / "site").mkdir()
        site = Site(folder / "site")
        ends.callback(site.stop)
        site.etcd.start()
        gateway = site.gateway(GATEWAY, name=GATEWAY)
        async with site.leader(gateway) as operator:
            job = RealJob(folder, site, operator, scene, machines)
            ends.callback(job.stop)
            listener = Listener(job, operator)
            subscriber = Subscriber(gateway.operator, site.tls(site.control, "anomalies"), "recorder")

            async def read() -> None:
                async with contextlib.aclosing(subscriber.chunks()) as chunks:  # type: ignore[type-var]
                    async for chunk in chunks:
                        listener.hear(chunk)

            reading = asyncio.create_task(read())
            try:
                job.start()
                yield job, listener
                if reading.done():
                    reading.result()
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
