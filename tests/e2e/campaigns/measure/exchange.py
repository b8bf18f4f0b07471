"""Measure how long a job stands still while pods exchange roles: through memory, and through a throttled volume.

Two jobs of two pipeline stages with two data-parallel ranks each, one after the other, which differ in where their
state goes: into the pods' memory, with a copy in another pod, or into a folder that all pods share, as most jobs do.
Beside each rank an interpreter stands by, so that the state is most of the standstill. Work that is done again counts.
The kernel holds each pod to its part of the folder's rate, and its pages are dropped at once: a volume that other
machines write has none here. A link between two pods becomes slow, and roles are exchanged against it (FALCON §7.4,
figure 19: less than a minute, and 6.72 times as long through a disk). The script's own clock times the steps.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.limits import Limit
from dev.cluster import cgroups, faults
from dev.install import heal_nodes, prepare_cluster
from dev.kubectl import Json, Kubectl
from evaluation.harness import Table
from tests.e2e.campaigns.measure.limited import limited
from tests.e2e.campaigns.stage import namespace, shared_folder
from tests.e2e.jobs import Job
from tests.e2e.pipelines import MANY, median_between, seconds, stages, steps

BALLAST: Final = 128  # MiB of each rank's state
RANKS: Final = 4
EVERY: Final = 100  # steps between two checkpoints
RATE: Final = "40mbit"
VOLUME_BYTES_A_SECOND: Final = 125_000_000  # of all pods together
MOST_STANDSTILL: Final = 10.0  # s, through memory
DROP_SECONDS: Final = 0.2


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One job's exchange: seconds, and steps that were done twice."""

    standstill: float  # from the end of the last step before it to the end of the first step after it
    again: int
    healthy: float  # a step
    slow: float
    after: float

    @property
    def lost(self) -> float:
        """Return the standstill with the steps that were done again."""
        return self.standstill + self.again * self.healthy


def measure(kubectl: Kubectl) -> dict[str, Exchange]:
    """Return the exchange through memory and through the volume."""
    found = {"memory": _exchanged(kubectl, None)}
    with shared_folder() as volume, _without_pages(volume):
        found["volume"] = _exchanged(kubectl, volume)
    return found


def _exchanged(kubectl: Kubectl, volume: Path | None) -> Exchange:
    heal_nodes(Kubectl(kubectl.kubeconfig))
    job = Job(kubectl, _manifest(kubectl, volume))
    try:
        job.wait_settled(60)
        if volume is not None:
            for member in job.members():
                cgroups.limit_volume(faults.find(member["node"]), volume.stat().st_dev, VOLUME_BYTES_A_SECOND // RANKS)
        job.wait_settled(EVERY)  # a checkpoint at least
        healthy = seconds(job, 0.0)
        before = job.members()
        faults.link(before[0]["node"], RATE, before[1]["node"])
        began = steps(job)[-1]["unix_seconds"]
        job.wait("roles are exchanged", lambda s: any(e.get("state") == "Resolved" for e in job.diagnoses(s)), 400)
        start = [line for line in job.all_lines() if line["event"] == "start"][-1]
        after = seconds(job, start["unix_seconds"])
        print(job.kubectl.run("describe", "trainingjob", job.name))
        done = [line for line in steps(job) if line["unix_seconds"] < start["unix_seconds"]]
        first = next(line for line in steps(job) if line["unix_seconds"] > start["unix_seconds"])
        return Exchange(
            standstill=first["unix_seconds"] - done[-1]["unix_seconds"],
            again=done[-1]["step"] - start["resumed_from"],
            healthy=healthy,
            slow=median_between(job, began + 5, done[-1]["unix_seconds"]),
            after=after,
        )
    finally:
        job.delete()
        heal_nodes(Kubectl(kubectl.kubeconfig))


def _manifest(kubectl: Kubectl, volume: Path | None) -> Json:
    options = ["--ballast", str(BALLAST), *(["--folder", "/checkpoints"] if volume is not None else [])]
    made = stages(kubectl, "exchange", MANY, *options, every=EVERY)
    spec = made["spec"]
    spec["recovery"] = {"standby": "Imports"}
    spec["checkpoint"] = {"memory": f"{4 * BALLAST}Mi", "copies": 1} if volume is None else {}
    if volume is not None:
        pod = spec["template"]["spec"]
        pod.setdefault("volumes", []).append({"name": "checkpoints", "hostPath": {"path": str(volume)}})
        pod["containers"][0].setdefault("volumeMounts", []).append({"name": "checkpoints", "mountPath": "/checkpoints"})
    return made


@contextlib.contextmanager
def _without_pages(volume: Path) -> Iterator[None]:
    """Let the kernel forget what was written to the volume, again and again."""
    ended = threading.Event()

    def drop() -> None:
        while not ended.wait(DROP_SECONDS):
            for path in volume.rglob("*"):
                with contextlib.suppress(OSError), path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def limits(found: dict[str, Exchange]) -> list[Limit]:
    """Return what is to be kept."""
    stood = found["memory"].standstill
    return [Limit(what="through memory: standstill", measured=stood, most=MOST_STANDSTILL, unit="s")]


def report(found: dict[str, Exchange]) -> str:
    """Return a row for each way of the state."""
    rows = [
        "| state | standstill | steps done again | lost together | a step: healthy, slow, after |",
        "|---|---|---|---|---|",
        *(
            f"| through {way} | {each.standstill:.1f} s | {each.again} | {each.lost:.1f} s"
            f" | {each.healthy:.2f}, {each.slow:.2f}, {each.after:.2f} s |"
            for way, each in found.items()
        ),
    ]
    ratio = found["volume"].lost / found["memory"].lost
    return "\n".join([*rows, "", f"Through the volume {ratio:.1f} × as much is lost.", ""])


def make(_: argparse.Namespace) -> Table:
    """Return the exchange through memory, with its limit, and through the volume. Takes ten minutes."""
    with namespace(prepare_cluster()) as kubectl:
        found = measure(kubectl)
    return limited(report(found), limits(found))
