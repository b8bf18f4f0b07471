"""A pod without Kubernetes: falcon-launch with real ranks, and the real agent, which reports to a real gateway."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.rings.ring_reader import RingReader
from falcon_agent.rings.tracker import Memory
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.agent_config import VARIABLE, AgentConfig, encode_config
from falcon_core.wire.keys import JobKey
from falcon_core.wire.launcher.launch import Phase, Standby
from falcon_core.wire.reporting.messages import Detection, Plan, PlanMember, RankSignals, Summary
from falcon_core.wire.reporting.microbatches import MicrobatchOrder
from falcon_core.wire.reporting.reports import decode_summary
from falcon_gateway import PodEntry
from tests.integration.gateway.gateways import Job, Operator, Site
from tests.integration.ports import free_port
from tests.integration.shim.launching import Launcher

T = TypeVar("T")
JOB = Job("gpt2", "0b2f8f4e-1d0c-4c1b-9a55-3f6a1f0f5f11", pods=1)
PYTHON = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = PROGRAMS / "training.py"
PATIENCE_SECONDS = 150.0  # several imports of PyTorch on a shared core; a condition that holds is seen at once


async def eventually(probe: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Return the first thing that ``probe`` finds; AssertionError if it finds nothing in PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = await probe()
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited {PATIENCE_SECONDS:.0f} s for: {what}")


class AgentPod(NamedTuple):
    """What an agent has to know of its pod."""

    name: str
    uid: str
    node: str
    run_dir: Path
    credentials: Path
    log: Path


def credentials(folder: Path, site: Site, job_uid: str) -> Path:
    """Make the folder, with the certificate of the job's agents; return it."""
    folder.mkdir()
    issued = site.jobs.client(job_uid)
    for name, path in {"ca.crt": site.control.ca, "tls.crt": issued.cert, "tls.key": issued.key}.items():
        shutil.copy(path, folder / name)
    return folder


def start_agent(
    site: Site, job: JobKey, pod: AgentPod, *, before: tuple[str, ...] = (), **changes: Any
) -> subprocess.Popen[bytes]:
    """Start a pod's agent, with the environment that the operator renders.

    ``before``: words before its command, that put it into a machine; ``changes``: of ``AgentConfig``.
    """
    config = AgentConfig(
        namespace=job.namespace,
        job=job.name,
        job_uid=job.uid,
        gateways=tuple(gateway.agents for gateway in site.gateways),
        gateway_tls_dir=str(pod.credentials),
        run_dir=str(pod.run_dir),
    )
    environment = {
        **os.environ,
        "FALCON_POD": pod.name,
        "FALCON_POD_UID": pod.uid,
        "FALCON_NODE": pod.node,
        VARIABLE: encode_config(msgspec.structs.replace(config, **changes)),
    }
    with pod.log.open("ab") as log:
        command = [*before, sys.executable, "-m", "falcon_agent"]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


class Pod:
    """A pod whose launcher starts at once; agents and plans start when a test asks for them."""

    def __init__(
        self,
        folder: Path,
        site: Site,
        operator: Operator,
        *,
        procs: int,
        command: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
        job: Job = JOB,
    ) -> None:
        """Announce ``job`` and prepare its pod; each rank runs ``command``, by default the training program.

        ``options``: of the launcher.
        """
        self.folder = folder
        self.procs = procs
        self.uid = job.pod(0).pod_uid
        self.agent: subprocess.Popen[bytes] | None = None
        self.log = folder / "agent.log"
        self._site = site
        self._operator = operator
        self._job = job
        self._credentials = credentials(folder / "tls", site, job.uid)
        operator.desired.announce(job.announcement())
        self.allow(0)
        command = command or (str(PYTHON), str(PROGRAM), str(folder))
        self.launcher = Launcher(folder / "run", *command, options=options)

    def start_agent(self, **changes: Any) -> subprocess.Popen[bytes]:
        """Start another life of the agent, with what the operator hands over, and ``changes`` of it."""
        self.agent = start_agent(
            self._site,
            self._job.key,
            AgentPod("gpt2-0-abc12", self.uid, "node-a", self.launcher.run_dir, self._credentials, self.log),
            **changes,
        )
        return self.agent

    def stop(self) -> None:
        for process in (self.agent, self.launcher.process):
            if process is not None:
                process.kill()
                process.communicate(timeout=120)

    def allow(self, iterations: int) -> None:
        """Let the ranks train up to this iteration of their generation."""
        fresh = self.folder / "goal.new"
        fresh.write_text(str(iterations))
        fresh.rename(self.folder / "goal")

    def plan(
        self,
        generation: int,
        phase: Phase,
        exit_code: int = 0,
        *,
        retries: int = 0,
        standby: Standby = "None",
        port: int | None = None,
        next_port: int = 0,
        smoke: int = 0,
        verify_every: int = 0,
    ) -> None:
        """Publish the operator's plan.

        ``port``: where the ranks meet, None: any; ``next_port``: the next ones; ``smoke``: the number of a smoke test;
        ``verify_every``: the result of one in so many all-reduces is compared.
        """
        plan = Plan(
            epoch=1,
            generation=generation,
            phase=phase,
            procs_per_replica=self.procs,
            world_size=self.procs,
            master_addr="127.0.0.1",
            master_port=free_port() if port is None else port,
            retries=retries,
            standby=standby,
            next_master_port=next_port,
            smoke=smoke,
            verify_every=verify_every,
            exit_code=exit_code,
            members=[PlanMember(replica=0, pod_uid=self.uid, pod_name="gpt2-0-abc12", node="node-a", first_rank=0)],
        )
        self.publish(msgspec.json.encode(plan))

    def order(self, shares: list[int]) -> None:
        """Publish how many micro-batches each rank is to compute."""
        order = MicrobatchOrder(epoch=1, generation=1, shares=shares)
        self._operator.desired.publish(self._job.command("microbatches", msgspec.json.encode(order)))

    def publish(self, plan: bytes) -> None:
        """Publish bytes as the operator's plan."""
        self._operator.desired.publish(self._job.plan(plan))

    def entry(self) -> PodEntry | None:
        """Return the newest that the operator knows of this pod."""
        return self._operator.entry(self._job, 0)

    async def alive(self) -> bool:
        entry = self.entry()
        return entry is not None and entry.alive

    async def gone(self) -> bool:
        """Return whether the gateway says that the agent has fallen silent."""
        entry = self.entry()
        return entry is not None and not entry.alive

    def summary(self) -> Summary | None:
        entry = self.entry()
        return decode_summary(entry.payload, self.uid) if entry is not None and entry.payload else None

    async def logged(self, event: str) -> dict[str, str]:
        """Return the agent's first log record of this event."""

        async def probe() -> dict[str, str] | None:
            records = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
            return next((record for record in records if record["event"] == event), None)

        return await eventually(probe, f"the log record {event!r}")

    async def reported(self, what: str, holds: Callable[[Summary], bool]) -> Summary:
        """Return the first report for which ``holds`` is true."""

        async def probe() -> Summary | None:
            summary = self.summary()
            return summary if summary is not None and holds(summary) else None

        return await eventually(probe, what)

    async def remembered(self, ranks: int) -> Memory:
        """Return what the agent wrote down for its successor, once it has a place to go on from in each rank's ring."""

        async def probe() -> Memory | None:
            raw = RunDir(self.launcher.run_dir).load_memory()
            memory = msgspec.json.decode(raw, type=Memory) if raw else Memory()
            return memory if sum(rank.anchor is not None for rank in memory.ranks.values()) == ranks else None

        return await eventually(probe, "the agent's memory of every rank")

    async def trained(self, iterations: int) -> None:
        """Wait until every rank has done that many iterations of its generation."""

        async def probe() -> bool:
            return all(len(self.ended_ns(rank)) >= iterations for rank in range(self.procs))

        await eventually(probe, f"{iterations} iterations")

    def ended_ns(self, rank: int) -> npt.NDArray[np.int64]:
        """Return the script's own clock at the end of each iteration, shape [n]."""
        path = self.folder / f"ended-{rank}"
        raw = path.read_bytes() if path.exists() else b""
        return np.frombuffer(raw, dtype="<i8")

    def in_rings(self) -> list[RankSignals]:
        """Return, by rank, what a reader reports that reads each rank's ring once, from its beginning."""
        found = []
        for path in (self.launcher.run_dir / "launch" / "rings").glob("*.ring"):
            reader, chain = RingReader(path), RankChain(Detection())
            chain.feed(reader.read(0.0).records)
            found.append(chain.signals(reader.header.rank, 0))
            reader.close()
        return sorted(found, key=lambda signals: signals.rank)

    def iterations_in_rings(self) -> list[int]:
        return [signals.iterations for signals in self.in_rings()]

    def pids(self) -> list[int]:
        """Return the pids of the ranks that run."""
        status = self.launcher.status()
        return [rank.pid for rank in status.ranks if rank.state == "Running"] if status is not None else []
