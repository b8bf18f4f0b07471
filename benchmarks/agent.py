"""What the agent costs beside its ranks, and how long a killed rank is away with agent and gateway on the way.

    make venv shim gateway cluster-build torch-venv
    FALCON_CACHE=… SHIM_OUT=… GATEWAY_OUT=… python -m benchmarks.agent   # where `make shim gateway` put them

With the argument ``restarts`` it measures the restarts alone, with ``output`` what reading the ranks' output costs.

CPU and memory are the agent's own, from /proc, over MEASURED_SECONDS after WARM_SECONDS: beside a real DDP job, and
beside rings that this program writes as the shim does, at the rate of sharded training: a cycle of 48 all-gathers,
48 reduce-scatters and 4 all-reduces. The operator's part is played by this program, which answers at once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Final

import numpy as np

from benchmarks.errors.healthy import lines
from benchmarks.launch.processes import cpu_seconds, rss_mib
from falcon_agent.output.monitor import Output
from falcon_core.errors.judge import shipped_judge
from falcon_core.wire import ring
from falcon_core.wire.launcher.launch import LaunchRank, LaunchStatus
from falcon_core.wire.launcher.output import READABLE
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.ring import DType, Kind, Op, RingHeader
from tests.integration.agent.pod import Pod
from tests.integration.gateway.gateways import Job, Operator, Site
from tests.unit.agent.outputs import OutputWriter

WARM_SECONDS: Final = 15.0
MEASURED_SECONDS: Final = 30.0
RESTARTS: Final = 7
SETTLED_SECONDS: Final = 1.5  # before a rank is killed: the report of its start has left by then
CYCLE: Final = ((Op.ALL_GATHER, 48), (Op.REDUCE_SCATTER, 48), (Op.ALL_REDUCE, 4))
CALLS: Final = sum(count for _, count in CYCLE)
SLEEPER: Final = ("sh", "-c", "exec sleep 1000")
PRINTS: Final = 20
READS: Final = 15
# Ranks that print what training prints: a line an iteration, or a bar that is drawn ten times a second.
LINES: Final = """
import time
for step in range(10**9):
    print(f"step {step}: loss 2.3172 | grad norm 0.8123 | lr 3.0e-04 | 812.4 tokens/s", flush=True)
    time.sleep(0.05)
"""
BAR: Final = """
import sys, time
for step in range(10**9):
    bar = "#" * (step // 100 % 20)
    sys.stderr.write(f"\\rtraining: {step % 2000 // 20:3d}%|{bar:20s}| {step}/2000 [00:12<03:42, 8.93it/s]")
    time.sleep(0.1)
"""
# A rank that raises when it is told, says when, and lives on.
RAISES: Final = """
import pathlib, sys, time, traceback
folder = pathlib.Path(sys.argv[1])
print("started", flush=True)
while not (folder / "go").exists():
    time.sleep(0.001)
try:
    raise ValueError("bad batch")
except ValueError:
    at = time.monotonic_ns()
    traceback.print_exc()
    (folder / "at.new").write_text(str(at))
    (folder / "at.new").rename(folder / "at")
time.sleep(1000)
"""
MakePod = Callable[..., Pod]


class SyntheticRank:
    """A ring file with a writer: one iteration of CYCLE every ``iteration_seconds``."""

    def __init__(self, folder: Path, rank: int, ranks: int, iteration_seconds: float) -> None:
        self._seconds = iteration_seconds
        self._header = RingHeader(
            capacity=ring.DEFAULT_CAPACITY,
            pid=rank + 1,
            generation=1,
            rank=rank,
            world_size=ranks,
            local_rank=rank,
            start_unix_ns=time.time_ns(),
            start_ns=time.monotonic_ns(),
            head=0,
        )
        path = folder / f"g1-r{rank}-{rank + 1}.ring"
        fresh = path.with_suffix(".new")
        fresh.write_bytes(ring.pack_header(self._header))
        os.truncate(fresh, ring.HEADER_BYTES + ring.DEFAULT_CAPACITY * ring.RECORD_BYTES)
        fresh.rename(path)
        self._file = os.open(path, os.O_WRONLY)
        self._written = 0
        self._noise = np.random.default_rng(rank)

    def write_until(self, now_ns: int) -> None:
        """Write every call whose time has come."""
        due = int((now_ns - self._header.start_ns) / 1e9 / self._seconds * CALLS)
        due = min(due, self._written + 1000)
        count = due - self._written
        if count <= 0:
            return
        numbers = np.arange(self._written, due)
        place = numbers % CALLS
        records = np.zeros(count, dtype=ring.RECORD_DTYPE)
        records["seq"] = numbers + 1
        spacing_ns = self._seconds * 1e9 / CALLS
        jitter = self._noise.uniform(0, 0.2 * spacing_ns, count)
        records["t_start_ns"] = (self._header.start_ns + numbers * spacing_ns + jitter).astype(np.uint64)
        records["duration_ns"] = int(0.5 * spacing_ns)
        records["comm"] = 1
        records["comm_seq"] = numbers
        records["bytes"] = 1 << 20
        ops = np.repeat([int(op) for op, _ in CYCLE], [count for _, count in CYCLE])
        records["op"] = ops[place]
        records["dtype"] = DType.BFLOAT16
        records["kind"] = Kind.BLOCKING
        records["check"] = ring.checks(records)
        for number, record in zip(numbers, records, strict=True):
            slot = int(number) % ring.DEFAULT_CAPACITY
            os.pwrite(self._file, record.tobytes(), ring.HEADER_BYTES + slot * ring.RECORD_BYTES)
        self._written = due
        os.pwrite(self._file, due.to_bytes(8, "little"), 64)  # the head


async def cost(pid: int) -> str:
    await asyncio.sleep(WARM_SECONDS)
    used, began = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(MEASURED_SECONDS)
    share = (cpu_seconds(pid) - used) / (time.monotonic() - began)
    return f"{100 * share:.1f} % of a core, {rss_mib(pid):.0f} MiB"


def counted(summary: Summary, procs: int) -> bool:
    """Check whether all ranks are reported and the first of them is tracked."""
    return len(summary.ranks) == procs and summary.ranks[0].tracking == "Tracking"


def runs(summary: Summary) -> bool:
    return summary.launch is not None and summary.launch.state == "Running"


async def beside_ddp(make_pod: MakePod, procs: int) -> None:
    pod = make_pod(procs=procs)
    try:
        agent = pod.start_agent()
        pod.allow(1_000_000)
        pod.plan(1, "Run")
        await pod.reported("ranks", lambda summary: counted(summary, procs))
        print(f"beside DDP, {procs} ranks, 27 iterations a second at most: {await cost(agent.pid)}")
    finally:
        pod.stop()


def python(program: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-E", "-c", program, *arguments)


def relay(pod: Pod) -> None:
    """Read what the launcher passes on, as the container's runtime does."""
    for stream in (pod.launcher.process.stdout, pod.launcher.process.stderr):
        threading.Thread(target=_drain, args=(stream,), daemon=True).start()


def _drain(stream: IO[bytes]) -> None:
    while os.read(stream.fileno(), 1 << 20):
        pass


async def beside_rings(
    make_pod: MakePod, procs: int, iteration_seconds: float, command: tuple[str, ...] = SLEEPER, prints: str = ""
) -> None:
    pod = make_pod(procs=procs, command=command)
    relay(pod)

    async def write() -> None:
        rings = pod.launcher.run_dir / "launch" / "rings"
        ranks = [SyntheticRank(rings, rank, procs, iteration_seconds) for rank in range(procs)]
        while True:
            for rank in ranks:
                rank.write_until(time.monotonic_ns())
            await asyncio.sleep(0.02)

    try:
        agent = pod.start_agent()
        pod.plan(1, "Run")
        await pod.reported("a running pod", runs)
        writing = asyncio.create_task(write())
        await pod.reported("ranks", lambda summary: counted(summary, procs))
        costs, launcher = await asyncio.gather(cost(agent.pid), cost(pod.launcher.process.pid))
        summary = pod.summary()
        assert summary is not None
        lost = sum(rank.lost_records for rank in summary.ranks)
        what = f"{procs} ranks of {CALLS / iteration_seconds:.0f} calls a second{prints}"
        print(f"{what}: {costs}, {lost} records lost; the launcher {launcher}")
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    finally:
        pod.stop()


async def until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(0.002)


def has_grown(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size >= size


def killed_in(summary: Summary | None, generation: int) -> bool:
    launch = summary.launch if summary is not None else None
    return (
        launch is not None
        and launch.generation == generation
        and any(rank.signal == signal.SIGKILL for rank in launch.ranks)
    )


async def restarts(make_pod: MakePod, born: Path) -> None:
    """Measure SIGKILL of a rank → report at the operator → the next plan → its ranks run."""
    program = f"open({str(born)!r}, 'a').write('x'); import time; time.sleep(1000)"
    pod = make_pod(procs=2, command=(sys.executable, "-S", "-E", "-c", program))
    reported_seconds, back_seconds = [], []
    try:
        pod.start_agent()
        for generation in range(1, 2 + RESTARTS):
            planned = time.monotonic()
            pod.plan(generation, "Run")
            await until(partial(has_grown, born, 2 * generation))
            back_seconds.append(time.monotonic() - planned)
            if generation > RESTARTS:
                break
            await asyncio.sleep(SETTLED_SECONDS)
            status = pod.launcher.status()
            assert status is not None
            killed = time.monotonic()
            os.kill(status.ranks[1].pid, signal.SIGKILL)
            await until(lambda number=generation: killed_in(pod.summary(), number))  # type: ignore[misc]
            reported_seconds.append(time.monotonic() - killed)
    finally:
        pod.stop()
    del back_seconds[0]  # the first start is no restart
    together = max(seen + back for seen, back in zip(reported_seconds, back_seconds, strict=True))
    print(
        f"a rank killed: the operator knows it after {1000 * statistics.median(reported_seconds):.0f} ms, the next "
        f"generation runs {1000 * statistics.median(back_seconds):.0f} ms after its plan is published (of {RESTARTS}: "
        f"together at most {1000 * together:.0f} ms)"
    )


def reading(folder: Path) -> None:
    """Measure how fast an agent reads and judges the lines of healthy ranks, from a rank's file."""
    text = "\n".join(lines(10_000)).encode()[: READABLE - 1] + b"\n"
    status = LaunchStatus(
        generation=1,
        dead_below=1,
        state="Running",
        ranks=[LaunchRank(local_rank=0, rank=0, pid=1, state="Running", started_unix_ns=0)],
    )
    writer, output = OutputWriter(folder), Output(folder, lambda: shipped_judge().classifier)
    took_seconds = []
    for number in range(READS):
        output.look(status, 10.0 * number)  # what is left
        writer.write(text)
        began = time.thread_time()
        output.look(status, 10.0 * number + 5.0)
        took_seconds.append(time.thread_time() - began)
    seconds = statistics.median(took_seconds)
    assert not output.reports(1), "all of it is read, and nothing in it is an error"
    count = len(text.splitlines())
    print(f"reading output: {count / seconds:,.0f} lines/s, {len(text) / seconds / 1e6:.0f} MB/s of a core")


def raised(summary: Summary | None) -> bool:
    return summary is not None and any(one.raised for each in summary.output for one in each.printed)


async def print_to_report(make_pod: MakePod, folder: Path) -> None:
    """Measure a traceback's print → the operator has the report that quotes it; each time with a new agent."""
    took_seconds = []
    for number in range(PRINTS):
        place = folder / str(number)
        place.mkdir(parents=True)
        pod = make_pod(procs=1, command=python(RAISES, str(place)))
        try:
            pod.start_agent()
            pod.plan(1, "Run")
            await pod.reported("a running pod", runs)
            await asyncio.sleep(SETTLED_SECONDS)
            (place / "go").touch()
            await until(lambda one=pod: raised(one.summary()))  # type: ignore[misc]
            seen = time.monotonic_ns()
            await until((place / "at").exists)
            took_seconds.append((seen - int((place / "at").read_text())) / 1e9)
        finally:
            pod.stop()
    print(
        f"a traceback printed: the operator has it after {1000 * statistics.median(took_seconds):.0f} ms, at most"
        f" {1000 * max(took_seconds):.0f} ms (of {PRINTS})"
    )


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="falcon-bench-") as name:
        root = Path(name)
        site = Site(root)
        site.etcd.start()
        numbers = itertools.count()

        def pod(operator: Operator, *, procs: int, command: tuple[str, ...] = ()) -> Pod:
            number = next(numbers)
            folder = root / f"pod-{number}"
            folder.mkdir()
            job = Job(f"gpt-{number}", str(uuid.uuid4()), pods=1)
            return Pod(folder, site, operator, procs=procs, command=command, job=job)

        try:
            async with site.leader(site.gateway()) as operator:
                make_pod = partial(pod, operator)
                if "output" not in sys.argv[1:]:
                    await restarts(make_pod, root / "born")
                if "restarts" in sys.argv[1:]:
                    return
                reading(root)
                await print_to_report(make_pod, root / "raises")
                await beside_rings(make_pod, 8, 0.05)
                for prints, program in ((", a line an iteration", LINES), (", a progress bar", BAR)):
                    await beside_rings(make_pod, 8, 0.05, python(program), prints)
                if "output" in sys.argv[1:]:
                    return
                for procs, iteration_seconds in ((1, 0.25), (8, 0.25)):
                    await beside_rings(make_pod, procs, iteration_seconds)
                await beside_ddp(make_pod, 2)
        finally:
            site.stop()


if __name__ == "__main__":
    asyncio.run(main())
