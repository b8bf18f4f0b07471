"""Measure on one machine what a standby saves a restart beside torchrun's own, and what it costs meanwhile.

It needs ``make venv shim gateway torch-venv``, and no cluster. SHIM_OUT, GATEWAY_OUT and FALCON_CACHE say where
``make`` put what it built. Launcher, agent, gateway and PyTorch are real, all ranks on this machine; this program is
the operator, and publishes the next generation when the agent reports the end. ``torchrun`` restarts the program by
itself. Seconds; a restart counts from SIGKILL of one rank to the end of the last rank's first step.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.ready.parts import Parts
from benchmarks.results import ROOT
from evaluation.harness import Table
from falcon_core.wire.launcher.launch import Standby
from tests.integration.agent.pod import PROGRAMS, PYTHON, Pod
from tests.integration.gateway.gateways import running_site
from tests.integration.ports import free_port

AGENT: Final = ROOT / "agent"
PROGRAM: Final = PROGRAMS / "losses.py"
ROUGH_RUNS: Final = 3
FULL_RUNS: Final = 10
RANKS: Final = (2, 3)  # of the jobs that are measured
LEAST_STEPS: Final = 6  # before a kill: then the agent calls the ranks settled
PATIENCE_SECONDS: Final = 300.0
TORCHRUN_SECONDS: Final = 60.0  # then its restart counts as one that never ends
TORCHRUN_RESTARTS: Final = 3  # the first ones often fail: the new ranks find the dead ranks' addresses in its store
QUIET_SECONDS: Final = 5.0  # of steps beside standbys that are ready


class Row(NamedTuple):
    """One kind of restart, or one cost."""

    what: str
    ranks: int
    runs: int
    median: float
    worst: float
    unit: str


class Ranks(NamedTuple):
    """The files of ``tests/integration/agent/programs/losses.py``."""

    folder: Path
    count: int

    def steps(self, generation: int) -> list[list[int]]:
        """Return the ends of each rank's steps (monotonic ns)."""
        paths = [self.folder / f"losses-{generation}-{rank}" for rank in range(self.count)]
        lines = [path.read_text().splitlines(keepends=True) if path.exists() else [] for path in paths]
        return [[int(line.split()[1]) for line in of_rank if line.endswith("\n")] for of_rank in lines]

    async def trained(self, generation: int, steps: int, seconds: float = PATIENCE_SECONDS) -> list[list[int]]:
        """Wait until each rank has done that many steps."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.steps(generation)
            if all(len(ends) >= steps for ends in found):
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"generation {generation}: {[len(ends) for ends in found]} of {steps} steps")
            await asyncio.sleep(0.005)

    def process(self, generation: int) -> int:
        """Return the process id of the last rank."""
        lines = [line.split() for line in (self.folder / "lines").read_text().splitlines()]
        return next(int(pid) for begun, rank, pid in lines if begun == str(generation) and rank == str(self.count - 1))

    async def next_step(self, generation: int, killed_ns: int, seconds: float = PATIENCE_SECONDS) -> float:
        """Return the seconds from the kill to the first step of all ranks."""
        ends = await self.trained(generation, 1, seconds)
        return (max(of_rank[0] for of_rank in ends) - killed_ns) / 1e9


@contextlib.asynccontextmanager
async def a_pod(folder: Path, ranks: int, quick: int) -> AsyncIterator[Pod]:
    """Run a pod with its agent, gateway and etcd. ``quick``: the steps after which a rank only idles along."""
    python = folder / "python"
    python.mkdir()
    for name in ("falcon_site", "falcon_start"):
        (python / name).symlink_to(AGENT / name)
    with running_site(folder / "site") as site:
        async with site.leader(site.gateways[0]) as operator:
            command = (str(PYTHON), str(PROGRAM), str(folder), str(quick))
            pod = Pod(folder, site, operator, procs=ranks, command=command, options=("--python", str(python)))
            try:
                pod.start_agent()
                yield pod
            finally:
                pod.stop()


async def until_ready(pod: Pod) -> None:
    """Wait until each rank has a standby."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        status = pod.launcher.status()
        if status is not None and status.standby is not None and status.standby.ready == pod.procs:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no standbys: {status and status.standby}")
        await asyncio.sleep(0.05)


async def end_is_reported(pod: Pod, generation: int) -> None:
    """Wait until the operator's side knows that a rank of the generation has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        summary = pod.summary()
        launch = summary.launch if summary is not None else None
        known = launch.ranks if launch is not None and launch.generation == generation else []
        if any(rank.state == "Exited" for rank in known):
            return
        if time.monotonic() > deadline:
            raise TimeoutError("nobody has reported the end")
        await asyncio.sleep(0.002)


async def falcon(folder: Path, ranks: int, runs: int, standby: Standby) -> list[float]:
    """Return the seconds of each restart under Falcon."""
    seconds = []
    async with a_pod(folder, ranks, quick=1) as pod:
        trained = Ranks(folder, ranks)
        port, next_port = free_port(), free_port()
        pod.plan(1, "Run", standby=standby, port=port, next_port=next_port)
        for generation in range(1, runs + 1):
            await trained.trained(generation, LEAST_STEPS)
            if standby != "None":
                await until_ready(pod)
            killed_ns = time.monotonic_ns()
            os.kill(trained.process(generation), signal.SIGKILL)
            await end_is_reported(pod, generation)
            port, next_port = next_port, free_port()
            pod.plan(generation + 1, "Run", standby=standby, port=port, next_port=next_port)
            seconds.append(await trained.next_step(generation + 1, killed_ns))
    return seconds


async def torchrun(folder: Path, ranks: int) -> float:
    """Return the seconds until torchrun's own elastic agent has all ranks train again; infinite where it gives up."""
    attempts = f"--max-restarts={TORCHRUN_RESTARTS}"
    options = (f"--nproc-per-node={ranks}", attempts, "--monitor-interval=0.1", "--standalone")
    command = [str(PYTHON), "-m", "torch.distributed.run", *options, str(PROGRAM), str(folder), "1"]
    trained = Ranks(folder, ranks)
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        await trained.trained(1, LEAST_STEPS)
        killed_ns = time.monotonic_ns()
        os.kill(trained.process(1), signal.SIGKILL)
        generations = range(2, 2 + TORCHRUN_RESTARTS)
        while (ends := next(filter(all, map(trained.steps, generations)), None)) is None:
            if time.monotonic_ns() - killed_ns > TORCHRUN_SECONDS * 1e9 or process.returncode is not None:
                return math.inf
            await asyncio.sleep(0.005)
        return (max(of_rank[0] for of_rank in ends) - killed_ns) / 1e9
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have given up by itself
            process.terminate()
        await process.wait()


async def cost(folder: Path, ranks: int) -> list[Row]:
    """Return what standbys cost beside ranks that train as fast as they can."""
    async with a_pod(folder, ranks, quick=1_000_000) as pod:
        trained = Ranks(folder, ranks)
        pod.plan(1, "Run", standby="Imports")
        await trained.trained(1, LEAST_STEPS)
        began_ns = time.monotonic_ns()
        await until_ready(pod)
        ready_ns = time.monotonic_ns()
        memory = [private_mib(pid) for pid in standbys(pod)]
        await asyncio.sleep(QUIET_SECONDS)
        ends = [end for end in trained.steps(1)[0] if end >= began_ns]
    importing = _mean_ns([end for end in ends if end <= ready_ns])
    waiting = _mean_ns([end for end in ends if end > ready_ns])
    seconds = (ready_ns - began_ns) / 1e9
    return [
        Row("a step while standbys import ÷ while they wait", ranks, 1, importing / waiting, importing / waiting, "×"),
        Row("all standbys ready after the ranks' first steps", ranks, 1, seconds, seconds, "s"),
        Row("memory of a standby, not shared", ranks, ranks, statistics.median(memory), max(memory), "MiB"),
    ]


def standbys(pod: Pod) -> list[int]:
    """Return the processes of the launcher that are no ranks."""
    launcher = pod.launcher.process.pid
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return sorted({int(child) for child in children} - set(pod.pids()))


def private_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def _mean_ns(ends: list[int]) -> float:
    return (ends[-1] - ends[0]) / (len(ends) - 1)


async def rows(ranks: int, runs: int) -> list[Row]:
    """Measure restarts without and with standbys and by torchrun, in the same run, and what standbys cost."""
    with tempfile.TemporaryDirectory(prefix="falcon-ready-") as name:
        elastic = [Path(name) / f"torchrun-{run}" for run in range(runs)]
        folders = [Path(name) / part for part in ("without", "imports", "processes", "beside")]
        for folder in (*folders, *elastic):
            folder.mkdir()
        kinds = {
            "restart, standby None": await falcon(folders[0], ranks, runs, "None"),
            "restart, standby Imports": await falcon(folders[1], ranks, runs, "Imports"),
            "restart, standby Processes": await falcon(folders[2], ranks, runs, "Processes"),
            "restart, torchrun": [await torchrun(folder, ranks) for folder in elastic],
        }
        found = [Row(what, ranks, runs, statistics.median(all_), max(all_), "s") for what, all_ in kinds.items()]
        return found + await cost(folders[3], ranks)


def make(options: argparse.Namespace) -> Table:
    """Return the restarts on this machine, and the costs."""
    parts, runs = Parts(options.keep), options.runs or (FULL_RUNS if options.full else ROUGH_RUNS)
    found = [row for ranks in RANKS for row in parts.of(f"{ranks} ranks here", list[Row], partial(_run, ranks, runs))]
    return Table(table(found))


def _run(ranks: int, runs: int) -> list[Row]:
    return asyncio.run(rows(ranks, runs))


def table(found: Sequence[Row]) -> str:
    """Return the restarts, and the costs, as a Markdown table."""
    lines = ["| | ranks | runs | median | worst |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.ranks} | {row.runs} | {row.median:.2f} {row.unit} | {row.worst:.2f} {row.unit} |"
        for row in found
    ]
    return "\n".join([*lines, ""])
