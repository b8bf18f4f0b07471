"""Make a job slow, and know what Falcon is to say and to do about it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from dev.cluster import faults
from dev.cluster.lifecycle import Options
from dev.kubectl import Json
from tests.e2e.campaigns.stage import SLOW_SCRIPT, Layout
from tests.e2e.jobs import SCRIPTS_DIR, Job

HALF: Final = 0.5
PROCESS_SHARE: Final = 0.3
RATE: Final = "20mbit"
PAIR_RATE: Final = "30mbit"
BESIDE_RATE: Final = "60mbit"  # beside a slow node: slower, and what the node costs by itself pays after ten minutes
BLIP_SECONDS: Final = 30.0
FLAP_SECONDS: Final = (10.0, 20.0)  # slow, and well
SETTLED_SECONDS: Final = 45.0  # after a relief, in which nothing may be done any more
PERIOD_US: Final = 20_000  # a quota is a millisecond at least
Action = Literal["ReplaceNode", "SwapNodes", ""]


_CPU_CGROUPS: Final = Path("/sys/fs/cgroup/cpu")
_HELD: Final = "held"  # the group of a process with a quota of its own


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said of a fault."""

    causes: frozenset[str]
    nodes: tuple[str, ...]  # all of them are named in ``where``
    rank: int | None = None  # None: a link


class Struck(msgspec.Struct, kw_only=True):
    """A fault that is on. ``relieve``: ends it; called once more where it has ended by itself."""

    expected: list[Expected]
    relieve: Callable[[], None]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault, and what is to be done about it."""

    name: str
    layout: Layout
    strike: Callable[[Job, int], Struck]  # of a job, at this rank
    action: Action = ""
    relieved_after: float = 0.0  # seconds: then it ends by itself; 0: never
    relieved_when_named: bool = False
    limit_seconds: float = 150.0  # until all that is expected has happened
    checks_speed: bool = True  # the action removes most of the slowdown
    in_check: bool = True


def rank_process(node: str, pod_uid: str, script: str, rank: int) -> int:
    """Return the process of a rank. Raises LookupError where it does not run."""
    for pid in faults.processes(node, f"python3 {SCRIPTS_DIR}/{script}", pod_uid):
        with contextlib.suppress(OSError):
            if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                return pid
    raise LookupError(f"rank {rank} does not run on {node}")


class HeldProcess:
    """A process with a quota of its own, below its container's: no counter of the container shows it.

    It needs cgroup v1, as the local cluster has it.
    """

    def __init__(self, pid: int, cores: float) -> None:
        lines = (each.split(":", 2) for each in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
        [path] = [path for _, controllers, path in lines if "cpu" in controllers.split(",")]
        self._container = _CPU_CGROUPS / path.lstrip("/")
        self._folder = self._container / _HELD
        self._folder.mkdir(exist_ok=True)
        (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self._folder / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_US)))
        self._pid = pid
        (self._folder / "cgroup.procs").write_text(str(pid))

    def release(self) -> None:
        """Give the process its container's CPU back, if it still lives."""
        with contextlib.suppress(OSError):
            for pid in (self._folder / "cgroup.procs").read_text().split():
                (self._container / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def _slow_node(job: Job, rank: int) -> Struck:
    node = job.member(rank)["node"]
    faults.slow(node, HALF)
    return Struck(expected=[_throttled(node, rank)], relieve=lambda: faults.heal(node))


def _throttled(node: str, rank: int) -> Expected:
    return Expected(causes=frozenset({"CpuThrottling"}), nodes=(node,), rank=rank)


def _slow_process(job: Job, rank: int, procs: int = 1) -> Struck:
    member = job.member(rank // procs)
    pid = rank_process(member["node"], member["podUid"], SLOW_SCRIPT, rank)
    cores = Options.load().node_cores * PROCESS_SHARE / procs
    held = HeldProcess(pid, cores)
    # It waits for a CPU and its container was not throttled: that looks like contention.
    expected = Expected(causes=frozenset({"Unknown", "CpuContention"}), nodes=(member["node"],), rank=rank)
    return Struck(expected=[expected], relieve=held.release)


def _slow_link(job: Job, rank: int, rate: str = RATE) -> Struck:
    node = job.member(rank)["node"]
    faults.link(node, rate)
    expected = Expected(causes=frozenset({"SlowLink"}), nodes=(node,))
    return Struck(expected=[expected], relieve=lambda: faults.heal(node))


def _slow_pair(job: Job, rank: int) -> Struck:
    nodes = job.nodes()
    ends = nodes[rank], nodes[(rank + 1) % len(nodes)]
    faults.link(ends[0], PAIR_RATE, ends[1])
    expected = Expected(causes=frozenset({"SlowLink"}), nodes=ends)
    return Struck(expected=[expected], relieve=lambda: faults.heal(ends[0]))


def _both(job: Job, rank: int) -> Struck:
    node, link = _slow_node(job, rank), _slow_link(job, (rank + 1) % len(job.nodes()), BESIDE_RATE)

    def relieve() -> None:
        node.relieve()
        link.relieve()

    return Struck(expected=[*node.expected, *link.expected], relieve=relieve)


def _flapping(job: Job, rank: int) -> Struck:
    node = job.member(rank)["node"]
    over = threading.Event()

    def flap() -> None:
        slow, well = FLAP_SECONDS
        while not over.is_set():
            faults.slow(node, HALF)
            over.wait(slow)
            faults.heal(node)
            over.wait(well)

    thread = threading.Thread(target=flap)
    thread.start()

    def relieve() -> None:
        over.set()
        thread.join()

    return Struck(expected=[_throttled(node, rank)], relieve=relieve)


KINDS: Final[Sequence[Kind]] = (
    Kind(name="a node's CPU to a half, for 30 s", layout="endures", strike=_slow_node, relieved_after=BLIP_SECONDS),
    Kind(name="likewise, until it is named", layout="endures", strike=_slow_node, relieved_when_named=True),
    Kind(
        name="a node's link to 20 Mbit/s, until it is named",
        layout="endures",
        strike=_slow_link,
        relieved_when_named=True,
    ),
    Kind(name="a node's CPU to a half", layout="acts", strike=_slow_node, action="ReplaceNode"),
    Kind(name="a process to 30 %", layout="acts", strike=_slow_process, action="ReplaceNode"),
    Kind(
        name="both at once, on two nodes",
        layout="acts",
        strike=_both,
        action="ReplaceNode",
        limit_seconds=420.0,
        checks_speed=False,
    ),
    Kind(name="a link between two nodes to 30 Mbit/s", layout="ring", strike=_slow_pair, action="SwapNodes"),
    Kind(
        name="such a link, with standbys",
        layout="ring with standbys",
        strike=_slow_pair,
        action="SwapNodes",
        limit_seconds=240.0,
        in_check=False,
    ),
    Kind(
        name="a rank of two in a pod to 30 %",
        layout="two a pod",
        strike=lambda job, rank: _slow_process(job, rank, procs=2),
        action="ReplaceNode",
    ),
    Kind(
        name="a node slow for 10 s in every 30",
        layout="acts",
        strike=_flapping,
        action="ReplaceNode",
        limit_seconds=420.0,
        in_check=False,
    ),
)


def named_by(expected: Expected, notes: Sequence[Json]) -> Json | None:
    """Return the diagnosis that names what is expected, with the right cause."""
    for note in notes:
        right = note["cause"] in expected.causes and all(node in note["where"] for node in expected.nodes)
        if right and (expected.rank is None or note.get("rank") == expected.rank):
            return note
    return None
