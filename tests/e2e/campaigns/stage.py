"""Set the stage: the cluster, a job on it that takes faults, and what its ranks and its operator write down."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from dev.cluster import faults
from dev.cluster.layout import nodes
from dev.cluster.lifecycle import Options
from dev.install import FENCED, SYSTEM_NAMESPACE, wait_for_spare
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.bus import bus_keys, etcd_pod, gateway_pods
from tests.e2e.campaigns.progress import Progress
from tests.e2e.campaigns.watch import Version, Watch
from tests.e2e.jobs import SCRIPTS_DIR, Job, condition, training_job, with_script
from tests.e2e.pipelines import SPARE

SCRIPT: Final = "suffering.py"
COMMAND: Final = f"python3 {SCRIPTS_DIR}/{SCRIPT}"
RANKS: Final = 3  # a pod each
PAUSE_SECONDS: Final = 0.2  # of a step
CHECKPOINT_EVERY: Final = 20
MANY: Final = 1_000_000
POOL_LABEL: Final = "falcon.dev/pool"
ROLE_LABEL: Final = "falcon.dev/role"
SETTLED_STEPS: Final = 15  # after which the next fault may come
# Attempts of the last minute alone count, so that no restart is held back for long: the campaign is not a job that
# fails again and again, but a year of one.
WINDOW_SECONDS: Final = 60.0
RECOVERY: Final = {"restarts": 1000, "window": "1m"}
MEMORY: Final = "1Gi"
LOCAL_STORAGE: Final = "200Mi"  # a trainer's limit
FINISH_STEPS: Final = 50  # ahead: every rank has read the order by then
SLOW_SCRIPT: Final = "remembering.py"  # of the jobs that become slow: their state is in the pods' memory
Layout = Literal["acts", "endures", "ring", "ring with standbys", "two a pod"]
LAYOUT_RANKS: Final[dict[Layout, int]] = {"acts": 3, "endures": 3, "ring": 4, "ring with standbys": 4, "two a pod": 4}
_IGNORE: Final = {"type": "Ignore"}


class Stage:
    """A job that takes faults."""

    def __init__(self, cluster: Kubectl, job: Job, folder: Path, runs: Watch, jobs: Watch) -> None:
        self.cluster = cluster
        self.system = cluster.within(SYSTEM_NAMESPACE)
        self.job = job
        self.folder = folder
        self.runs = runs
        self.jobs = jobs
        self.progress = Progress(folder, RANKS)
        self._orders = 0

    def run(self) -> Json:
        """Return the newest intent of the operator that was read: the spec of the TrainingRun."""
        return dict(self.runs.since(0.0)[-1].object["spec"])

    def order(self, rank: int, what: str, text: str = "", *, until: str = "begun") -> float:
        """Let the rank have a fault before its next step; return when it began (unix seconds).

        Raises:
            WaitTimeoutError: the rank made no step.
        """
        self._orders += 1
        number = str(self._orders)
        path = self.folder / f"order-{rank}"
        written = path.with_suffix(".new")
        written.write_text(json.dumps({"id": number, "what": what, "text": text}))
        written.rename(path)
        return wait_for(
            f"rank {rank} takes the order {what}",
            lambda: self.progress.stamp(number, until),
            timeout_seconds=10,
            every_seconds=0.01,
        )

    def wait_quiet(self, *, spare: bool = True) -> None:
        """Wait until the job trains and everything around it is as it was before the first fault.

        ``spare``: wait for a spare that is ready as well; where a pod stands by on it, there is no other node for one.
        """
        heal(self.cluster, self.job, self.run())
        if spare:
            wait_for_spare(self.cluster)
        wait_for("the control plane serves", self._serves, timeout_seconds=120)
        self.job.wait("no failure is open and every agent reports", self._calm, 120)
        life, began = int(self.run()["generation"]) - 1, time.time()
        wait_for(
            f"{SETTLED_STEPS} steps",
            lambda: self.progress.moved_at(began, life=life, steps=SETTLED_STEPS),
            timeout_seconds=60,
            last_seen=lambda: str(self.job.status().get("summary")),
        )
        self.runs.forget()
        self.jobs.forget()

    def _calm(self, status: Json) -> bool:
        recovery = self.run().get("recovery", {})
        lost = condition(status, "AgentLost").get("status") == "True"
        iterations = status.get("iterations", {}).get("count", 0)
        return status["state"] == "Running" and not lost and iterations > 0 and not {"stop", "hang"} & recovery.keys()

    def _serves(self) -> bool:
        operators = self.system.items("pods", "app.kubernetes.io/component=operator")
        pods = [*operators, etcd_pod(self.system)]
        return len(gateway_pods(self.system)) == 2 and all(
            condition(pod["status"], "Ready").get("status") == "True" for pod in pods
        )


def manifest(
    namespace: Kubectl,
    name: str,
    folder: Path,
    pause_seconds: float,
    recovery: Json = RECOVERY,
    *,
    memory: str = MEMORY,
) -> Json:
    """Return the job: a small GPT on three pods, which takes faults. ``memory``: the limit of each trainer."""
    spec = {
        "warmPoolRef": {"name": "spares"},
        "recovery": recovery,
        "mitigation": {"strategies": [{"type": "Ignore"}]},  # what is slow on this machine is no fault
    }
    made = training_job(name, steps=MANY, replicas=RANKS, checkpoints=str(folder), spec=spec)
    model = ("--micro-batches", "1", "--batch-size", "2", "--layers", "2")
    written = ("--checkpoint-dir", "/checkpoints", "--checkpoint-every", str(CHECKPOINT_EVERY), "--log-json")
    made = with_script(namespace, made, SCRIPT, "--steps", str(MANY), *model, *written)
    [trainer] = made["spec"]["template"]["spec"]["containers"]
    values = {"FOLDER": "/checkpoints", "PAUSE_SECONDS": str(pause_seconds)}
    trainer["env"] += [{"name": name, "value": value} for name, value in values.items()]
    trainer["resources"] = {
        "limits": {"memory": memory, "ephemeral-storage": LOCAL_STORAGE},
        "requests": {"memory": "300Mi"},
    }
    return made


def slow_manifest(namespace: Kubectl, layout: Layout) -> Json:
    """Return the job of a layout that becomes slow: a small GPT whose state is in the pods' memory.

    ``acts``: three pods, and a node is left as soon as that pays. ``endures``: likewise, but a replacement is declared
    to cost ten minutes. ``ring``: four pods, which may exchange their roles; also with an
    interpreter that stands by beside each rank. ``two a pod``: two pods of two ranks.
    """
    procs = 2 if layout == "two a pod" else 1
    match layout:
        case "acts" | "two a pod":
            strategies = [_IGNORE, {"type": "ReplaceNode", "overheadSeconds": 10}]
        case "endures":
            strategies = [_IGNORE, {"type": "ReplaceNode", "overheadSeconds": 600}]
        case "ring" | "ring with standbys":
            strategies = [_IGNORE, {"type": "SwapNodes", "overheadSeconds": 10}]
    spec = {
        "checkpoint": {"memory": "64Mi", "copies": 1},
        "mitigation": {"strategies": strategies},
        "detection": {"pauseBudget": "20%"},  # a job of the campaign is not five minutes old
        "procsPerReplica": procs,
        **({} if layout.startswith("ring") else {"warmPoolRef": {"name": "spares"}}),
        **({"recovery": {"standby": "Imports"}} if layout == "ring with standbys" else {}),
    }
    made = training_job(layout.replace(" ", "-"), steps=MANY, replicas=LAYOUT_RANKS[layout] // procs, spec=spec)
    if layout.startswith("ring"):  # the local cluster has four nodes for it, one of which is the spare
        made["spec"]["template"]["spec"]["tolerations"] = [SPARE]
    return with_script(namespace, made, SLOW_SCRIPT, "--steps", str(MANY), "--every", str(CHECKPOINT_EVERY))


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Yield a folder of this machine that the pods of every node share."""
    folder = Path(tempfile.mkdtemp(prefix="falcon-failstop-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def namespace(cluster: Kubectl) -> Iterator[Kubectl]:
    """Yield a namespace of a cluster with Falcon, and leave the cluster as it was."""
    name = f"failstop-{time.time_ns() % 1_000_000:06d}"
    cluster.run("create", "namespace", name)
    try:
        yield cluster.within(name)
    finally:
        cluster.run("delete", "namespace", name, "--wait", timeout_seconds=240)
        for node in cluster.items("nodes"):
            if node["metadata"]["labels"][ROLE_LABEL] == "worker":
                cluster.run("label", "node", node["metadata"]["name"], f"{POOL_LABEL}-")


@contextlib.contextmanager
def stage(
    kubectl: Kubectl,
    folder: Path,
    *,
    pause_seconds: float = PAUSE_SECONDS,
    recovery: Json = RECOVERY,
    memory: str = MEMORY,
) -> Iterator[Stage]:
    """Yield a job that trains and takes faults. ``memory``: the limit of each trainer."""
    wait_for_spare(kubectl)
    job = Job(kubectl, manifest(kubectl, "long", folder, pause_seconds, recovery, memory=memory))
    try:
        with Watch(kubectl, "trainingruns", job.name) as runs, Watch(kubectl, "trainingjobs", job.name) as jobs:
            job.wait_training(240)
            found = Stage(kubectl, job, folder, runs, jobs)
            found.wait_quiet()
            yield found
    finally:
        for name in faults.active():  # a dead node's kubelet confirms no deletion
            faults.heal(name)
        job.delete()


def is_stalled(version: Version) -> bool:
    """Check whether this version of the TrainingJob says that training stands still."""
    return condition(version.object.get("status", {}), "Ready").get("reason") == "Stalled"


def fenced(cluster: Kubectl) -> set[str]:
    """Return the nodes that no job may use."""
    return {
        node["metadata"]["name"]
        for node in cluster.items("nodes")
        if any(taint["key"] == FENCED for taint in node["spec"].get("taints", []))
    }


def heal(cluster: Kubectl, job: Job, run: Json) -> None:
    """Undo every fault; a node that the job has left is replaced by a new machine of that name, kept as a spare."""
    options = Options.load()
    count = len(nodes(options.workers, options.spares))
    for name in {entry["node"] for entry in run.get("exclusions", [])} - set(job.nodes()):
        faults.kill(name)
        cluster.run("delete", "node", name)
    for name in faults.active():
        faults.heal(name)

    def ready() -> bool:
        found = cluster.items("nodes")
        return len(found) == count and all(condition(node["status"], "Ready").get("status") == "True" for node in found)

    wait_for("every node is Ready", ready, timeout_seconds=60)
    for node in cluster.items("nodes"):
        labels = node["metadata"]["labels"]
        if labels[ROLE_LABEL] != "control" and POOL_LABEL not in labels:
            cluster.run("label", "node", node["metadata"]["name"], f"{POOL_LABEL}=spares")


def finish(stage: Stage) -> tuple[int, list[str]]:
    """Let training end; return its last step, and what is left of the job when it has been deleted."""
    stage.wait_quiet()
    last = stage.progress.newest() + FINISH_STEPS
    (stage.folder / "finish").write_text(str(last))
    stage.job.wait("the job has succeeded", lambda s: s.get("state") == "Succeeded", 120)
    uid = stage.job.get()["metadata"]["uid"]
    stage.job.delete()
    return last, left_behind(stage, uid)


def left_behind(stage: Stage, uid: str) -> list[str]:
    """Return what is still there of a deleted job, in words."""
    found = [
        f"{kind} {item['metadata']['name']}"
        for kind in ("pods", "services", "secrets")
        for item in stage.job.kubectl.items(kind)
    ]
    found += [f"key {key}" for key in bus_keys(stage.system, "/falcon/v1/") if uid in key]
    return [*found, *(f"fence on {node}" for node in fenced(stage.cluster))]
