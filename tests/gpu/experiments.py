"""Jobs of tests/gpu/programs, and what the shim's rings show of them: for tests and for benchmarks.shim.gpu.

Where a program can compute on the CPU as well, the same function runs it there (tests/integration/shim).
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.shim.iterations import PROGRAMS, ring_iterations, run
from benchmarks.shim.jobs import PYTHON, RANKS, SHIM, start, wait
from falcon_agent.cli.replay import replay, ring_files
from falcon_agent.rings.recorder import Recording
from falcon_core.wire.launcher.control import Mode, pack_control
from falcon_core.wire.ring import HEADER_BYTES, RECORD_DTYPE, Flag, Kind, Op, RecordArray, parse_header

KINDS = ("ddp", "fsdp", "pipeline", "exchange", "all_reduce")
CAPTURES = ("global", "thread_local", "relaxed")
LAUNCHES = 3  # of each graph
AGENT = Path(__file__).parents[2] / "agent"
SLOW_RANK = 1
# Of an iteration, so that it is long enough to be one: fewer than fifty a second
# (falcon_core.signals.iterations.period).
COMPUTE = {"COMPUTE_SECONDS": "0.03"}
# Two ranks share a GPU: NCCL 2.30 and newer are asked to allow it, older ones take them for two hosts (job.py). With a
# GPU each, neither changes anything. The same sums in the same order each time: losses are compared bit for bit.
ON_GPU = {
    "TRAIN_ON": "cuda",
    "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0,1"),
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
_DRIVER = Path("/dev/nvidiactl")
_ASK = "import torch; print(torch.cuda.device_count())"


@functools.cache
def missing() -> str:
    """Return why two ranks cannot compute on GPUs here; empty: they can."""
    if not _DRIVER.exists():
        return f"no GPU: {_DRIVER} is not there"
    if not PYTHON.exists():
        return f"no PyTorch: {PYTHON} is not there (make torch-venv)"
    asked = subprocess.run(
        [str(PYTHON), "-c", _ASK], env={**os.environ, **ON_GPU}, capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        return f"no GPU: PyTorch fails: {(asked.stderr.strip() or 'without a word').splitlines()[-1]}"
    return "" if int(asked.stdout) else "no GPU: PyTorch finds none"


class Found(msgspec.Struct, frozen=True):
    """What the agent's chain finds in one rank's ring."""

    period_calls: int | None
    iterations: int


def iterations_of(kind: str, folder: Path, iterations: int, more: Mapping[str, str]) -> list[Found]:
    """Run a training job with the shim, and return what is found of its iterations, by rank."""
    run(kind, folder, iterations, {**more, **COMPUTE})
    found = [ring_iterations(folder, rank) for rank in range(RANKS)]
    return [Found(period, len(each)) for period, each in found]


def expect_iterations(found: list[Found], iterations: int) -> None:
    """Assert that all ranks have one period, and that nearly all iterations were found."""
    assert len({rank.period_calls for rank in found}) == 1, found
    for rank in found:
        assert rank.period_calls is not None, found
        assert 0.8 * iterations <= rank.iterations <= iterations, found


def expect_slow_rank(named: Counter[tuple[int, ...]]) -> None:
    """Assert that SLOW_RANK, and no other, is named most often."""
    assert named, "no rank was named"
    assert named.most_common(1)[0][0] == (SLOW_RANK,), named


def culprits(folder: Path, iterations: int, slow_seconds: float, more: Mapping[str, str]) -> Counter[tuple[int, ...]]:
    """Let SLOW_RANK compute longer in the second half of a DDP job; return who is named, and how often.

    Every call is timed, as an agent asks for from the onset on: where calls return when they are enqueued (NCCL), the
    host's times alone show that all ranks are slow, not who makes them so.
    """
    control = folder / "control"
    control.write_bytes(pack_control(Mode.PROFILE, 1))
    # Long beside what a busy host adds to it: from a tenth more on, a rank is slow.
    slow = {"COMPUTE_SECONDS": "0.1", "SLOW_RANK": str(SLOW_RANK), "SLOW_SECONDS": str(slow_seconds)}
    run("ddp", folder, iterations, {**more, **slow, "FALCON_CONTROL": str(control)})
    findings = replay(ring_files([folder])).findings
    return Counter(verdict.ranks for finding in findings for verdict in finding.verdicts)


class Ends(msgspec.Struct, frozen=True):
    """How processes ended, by the way they took."""

    ends: dict[str, dict[str, int]]
    rings: int  # of processes that the shim saw


def ends(count: int, folder: Path, shim: bool, more: Mapping[str, str]) -> Ends:
    """End so many processes, in turns in each way; the device's times of all their calls are asked for.

    Raises:
        subprocess.CalledProcessError: the process that makes them failed.
    """
    control = folder / "control"
    control.write_bytes(pack_control(Mode.PROFILE, 1))
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    places = {"FALCON_RING_DIR": str(folder), "FALCON_CONTROL": str(control), "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **alone, **places, **more}
    if shim:
        environment["LD_PRELOAD"] = str(SHIM)
    done = subprocess.run(
        [str(PYTHON), str(PROGRAMS / "ends.py"), str(count)], env=environment, check=True, capture_output=True
    )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Ends)


class Graphs(msgspec.Struct, frozen=True):
    """The records of one rank that captured its calls."""

    captured: int
    launched: int
    timed: int  # launches whose completion the device reported


def graphs(mode: str, count: int, folder: Path) -> list[Graphs]:
    """Capture so many graphs in one of CAPTURES, and return what each rank's ring has of them."""
    wait(start(PROGRAMS / "graphs.py", [mode, str(count)], folder, more=_timed(folder)), f"graphs, {mode}")
    return [_graphs_of(records_of(folder, rank)) for rank in range(RANKS)]


def _graphs_of(records: RecordArray) -> Graphs:
    launches = records[records["kind"] == Kind.GRAPH_LAUNCH]
    done = records[records["kind"] == Kind.COMPLETED]
    return Graphs(
        captured=int((records["flags"] & Flag.CAPTURED != 0).sum()),
        launched=len(launches),
        timed=int(np.isin(launches["comm"], done["comm"]).sum()),
    )


class Split(msgspec.Struct, frozen=True):
    """One rank of a job whose communicators do not block."""

    communicators: int
    with_parent: int
    calls: int  # all-reduces of all communicators
    failed: int


def non_blocking(folder: Path, shim: bool = True) -> tuple[list[Split], int]:
    """Run a job on communicators that do not block; return what the rings have, and NCCL's warnings in its log."""
    more = {**_timed(folder), "TORCH_NCCL_USE_COMM_NONBLOCKING": "1", "NCCL_DEBUG": "WARN"}
    log = folder / "nccl.log"
    more["NCCL_DEBUG_FILE"] = str(log)
    wait(start(PROGRAMS / "non_blocking.py", [], folder, shim=shim, more=more), "non-blocking")
    warnings = log.read_text(errors="replace").count(" NCCL WARN ") if log.exists() else 0
    return [_split_of(records_of(folder, rank)) for rank in range(RANKS)] if shim else [], warnings


def _split_of(records: RecordArray) -> Split:
    born = records[(records["kind"] == Kind.DESCRIPTOR) & (records["flags"] & Flag.ENDED == 0)]
    calls = records[(records["kind"] == Kind.ENQUEUED) & (records["op"] == Op.ALL_REDUCE)]
    return Split(
        communicators=len(born),
        with_parent=int((born["bytes"] != 0).sum()),
        calls=len(calls),
        failed=int((calls["flags"] & Flag.FAILED != 0).sum()),
    )


def by_plugin(kind: str, folder: Path, iterations: int) -> list[Found]:
    """Run a training job that no hook sees, only NCCL's profiler interface."""
    more = {**_timed(folder), **COMPUTE, "NCCL_PROFILER_PLUGIN": str(SHIM)}
    arguments = [str(iterations), str(folder / "starts")]
    wait(start(PROGRAMS / f"{kind}.py", arguments, folder, shim=False, more=more), f"{kind} by the plugin")
    found = [ring_iterations(folder, rank) for rank in range(RANKS)]
    return [Found(period, len(each)) for period, each in found]


class Kept(msgspec.Struct, frozen=True):
    """What tests/gpu/programs/checkpoint.py measured on one rank."""

    seconds: float
    bytes: int


def checkpoint(what: str, memory: Path, folder: Path, more: Mapping[str, str]) -> list[Kept]:
    """Save a state to memory, or load it in other processes, and return what each rank measured."""
    place = {"PYTHONPATH": str(AGENT), "FALCON_CHECKPOINT_DIR": str(memory)}
    wait(start(PROGRAMS / "checkpoint.py", [what, str(folder)], folder, more={**more, **place}), f"checkpoint, {what}")
    paths = [folder / f"{what}-{rank}.json" for rank in range(RANKS)]
    return [msgspec.json.decode(path.read_bytes(), type=Kept) for path in paths]


class Calls(msgspec.Struct, frozen=True):
    """What tests/gpu/programs/calls.py measured on one rank."""

    host_ns: float
    seconds: float
    cpu_seconds: dict[str, float]  # by the threads' names
    device_ns: list[int]

    @property
    def helper_share(self) -> float:
        """Return the share of a core that the shim's helper thread uses."""
        return self.cpu_seconds.get("falcon-events", 0.0) / self.seconds


def calls(folder: Path, rounds: int, mode: Mode | None) -> list[Calls]:
    """Measure calls in a mode of the shim; None: without the shim."""
    control = folder / "control"
    control.write_bytes(pack_control(mode or Mode.OFF, 1))
    more = {**ON_GPU, "FALCON_CONTROL": str(control)}
    arguments = [str(folder), str(rounds)]
    wait(start(PROGRAMS / "calls.py", arguments, folder, shim=mode is not None, more=more), "calls")
    paths = [folder / f"calls-{rank}.json" for rank in range(RANKS)]
    return [msgspec.json.decode(path.read_bytes(), type=Calls) for path in paths]


def device_times(folder: Path, rank: int, count: int) -> list[int]:
    """Return the device's times in ns of a rank's last all-reduces, in order, from its ring."""
    records = records_of(folder, rank)
    done = records[(records["kind"] == Kind.COMPLETED) & (records["op"] == Op.ALL_REDUCE)]
    return [int(each) for each in done[np.argsort(done["comm_seq"], kind="stable")]["duration_ns"][-count:]]


def records_of(folder: Path, rank: int) -> RecordArray:
    """Return the records of a rank's only ring, oldest first."""
    (path,) = folder.glob(f"g*-r{rank}-*.ring")
    raw = path.read_bytes()
    slots = np.frombuffer(raw, RECORD_DTYPE, parse_header(raw).capacity, HEADER_BYTES)
    records: RecordArray = np.sort(slots[slots["seq"] > 0], order="seq")
    return records


def keep(folder: Path, kept: Path) -> None:
    """Copy what a test can replay: each ring with as many slots as there were calls, and what the job measured."""
    kept.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.ring"):
        recording = Recording(path, kept / path.name)
        recording.poll(time.monotonic())
        recording.close()
    for path in [*folder.glob("calls-*.json"), *folder.glob("nccl.log")]:
        shutil.copy(path, kept)


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for rings, in memory."""
    return tempfile.TemporaryDirectory(dir="/dev/shm")


def _timed(folder: Path) -> dict[str, str]:
    """Return the environment of a job on GPUs whose every call is timed."""
    control = folder / "control"
    control.write_bytes(pack_control(Mode.PROFILE, 1))
    return {**ON_GPU, "FALCON_CONTROL": str(control)}
