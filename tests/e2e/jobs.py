"""A training job on the real cluster, as the end-to-end tests see it: through kubectl, as its owner would."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dev.kubectl import Json, Kubectl, wait_for
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from tests.machine import cpu_times, own_diagnoses

TRAINER_IMAGE = "localhost/falcon/trainer:dev"
SCRIPT = "/opt/examples/train_gpt.py"
SCRIPTS = Path(__file__).with_name("scripts")
SCRIPTS_DIR = "/opt/scripts"  # in the container
COMMON_CAUSE = "CommonCause"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def training_job(
    name: str,
    *,
    steps: int,
    replicas: int = 3,
    seed: int = 1,
    checkpoints: str | None = None,
    checkpoint_every: int = 20,
    python_path: str | None = None,
    options: Sequence[str] = (),
    spec: Json | None = None,
) -> Json:
    """Return a TrainingJob that runs the example; ``checkpoints`` and ``python_path`` are host folders.

    ``options``: further words of the example's command line.
    """
    arguments = ["--steps", str(steps), "--seed", str(seed), "--log-json", *options]
    volumes: list[Json] = []
    mounts: list[Json] = []
    env: list[Json] = []
    if checkpoints is not None:
        arguments += ["--checkpoint-dir", "/checkpoints", "--checkpoint-every", str(checkpoint_every)]
        volumes.append({"name": "checkpoints", "hostPath": {"path": checkpoints, "type": "DirectoryOrCreate"}})
        mounts.append({"name": "checkpoints", "mountPath": "/checkpoints"})
    if python_path is not None:
        volumes.append({"name": "torch", "hostPath": {"path": python_path, "type": "Directory"}})
        mounts.append({"name": "torch", "mountPath": "/opt/torch", "readOnly": True})
        env.append({"name": "PYTHONPATH", "value": "/opt/torch"})
    container = {
        "name": "trainer",
        "image": TRAINER_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", SCRIPT, *arguments],
        "env": env,
        "volumeMounts": mounts,
        "securityContext": {**RESTRICTED, "runAsUser": 65532},
    }
    return {
        "apiVersion": "falcon.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "procsPerReplica": 1,
            "template": {"spec": {"containers": [container], "volumes": volumes}},
            "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "ReplaceNode", "overheadSeconds": 13}]},
            **(spec or {}),
        },
    }


def with_script(kubectl: Kubectl, manifest: Json, script: str | Path, *options: str) -> Json:
    """Let the job run another script, from a ConfigMap of its namespace: one of ``tests/e2e/scripts``, or any path."""
    path = SCRIPTS / script
    name = path.name
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": {name: path.read_text()}}
    )
    pod = manifest["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "scripts", "configMap": {"name": "scripts"}})
    [trainer] = pod["containers"]
    trainer["command"] = ["python3", f"{SCRIPTS_DIR}/{name}", *options]
    trainer["volumeMounts"].append({"name": "scripts", "mountPath": SCRIPTS_DIR})
    return manifest


def layout_job(kubectl: Kubectl, name: str, *options: str) -> Json:
    """Return a job of two pods with four ranks each, in which tensor, pipeline and data parallelism are all 2."""
    parallelism = {"tensor": 2, "pipeline": 2}
    manifest = training_job(name, steps=1, replicas=2, spec={"procsPerReplica": 4, "parallelism": parallelism})
    return with_script(kubectl, manifest, "layouts/layout.py", "--tensor", "2", "--pipeline", "2", *options)


class Job:
    """One applied job."""

    def __init__(self, kubectl: Kubectl, manifest: Json) -> None:
        self.kubectl = kubectl
        self.name = str(manifest["metadata"]["name"])
        self._begun = cpu_times()
        kubectl.apply(manifest)

    def get(self) -> Json:
        found = self.kubectl.get("trainingjob", self.name)
        assert found is not None, f"trainingjob {self.name} is gone"
        return found

    def status(self, *, common_causes: bool = False) -> Json:
        """Return the status, but what slows all ranks alike unless ``common_causes`` are wanted.

        All nodes of the local cluster are one machine: whatever else runs there slows all of them at once.
        """
        found = dict(self.get().get("status", {}))
        return found if common_causes else without_common_cause(found)

    def diagnoses(self, status: Json | None = None) -> list[Json]:
        """Return what Falcon found, the newest first, but slow ranks that a hypervisor explains."""
        return own_diagnoses(self.status() if status is None else status, self._begun)

    def pods(self) -> list[Json]:
        return self.kubectl.items("pods", f"falcon.dev/job={self.name}")

    def wait(
        self, what: str, look: Callable[[Json], Any], timeout_seconds: float, *, common_causes: bool = False
    ) -> Json:
        """Wait until ``look(status)`` is true; the failure quotes state, summary and conditions."""
        seen: list[Json] = [{}]

        def check() -> Json | None:
            seen[0] = self.status(common_causes=common_causes)
            return seen[0] if look(seen[0]) else None

        def last_seen() -> str:
            status = seen[0]
            kept = {key: status.get(key) for key in ("state", "summary", "diagnoses", "conditions")}
            pods = [
                (pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"].get("phase"))
                for pod in self.pods()
            ]
            return json.dumps({**kept, "pods": pods}, indent=1)

        return wait_for(what, check, timeout_seconds=timeout_seconds, last_seen=last_seen)

    def wait_training(self, timeout_seconds: float = 120) -> Json:
        """Wait until the job trains and its healthy iteration time is known."""
        return self.wait(
            "the job trains and its iteration time is known",
            lambda s: s.get("state") == "Running" and s.get("iterations", {}).get("healthyMicroseconds"),
            timeout_seconds,
        )

    def wait_settled(self, iterations: int = SETTLED_ITERATIONS) -> Json:
        """Wait until the job trains at a level that noise at its start no longer moves."""
        self.wait_training()
        return self.wait(
            f"{iterations} iterations",
            lambda s: s.get("iterations", {}).get("count", 0) >= iterations,
            120,
        )

    def run(self) -> Json:
        """Return what the operator intends for the job: the spec of its TrainingRun."""
        found = self.kubectl.get("trainingrun", self.name)
        assert found is not None, f"trainingrun {self.name} is gone"
        return dict(found["spec"])

    def generation(self) -> int:
        return int(self.run()["generation"])

    def members(self) -> list[Json]:
        """Return the pods of the current generation, by rank (one process a pod)."""
        return [
            {
                "podName": f"{self.name}-{member.get('number', rank)}-{member['suffix']}",
                "podUid": member.get("uid"),
                "node": member.get("node"),
            }
            for rank, member in enumerate(self.run()["members"])
        ]

    def nodes(self) -> list[str]:
        return [member["node"] for member in self.members()]

    def member(self, rank: int) -> Json:
        """Return the pod that holds a rank in the current generation."""
        return self.members()[rank]

    def pod_uids(self) -> dict[int, str]:
        """Return rank → pod uid of the current generation."""
        return {rank: member["podUid"] for rank, member in enumerate(self.members())}

    def log_lines(self) -> list[Json]:
        """Return what rank 0 of the current generation has logged, oldest first; the other ranks are silent."""
        text = self.kubectl.run("logs", self.member(0)["podName"], "-c", "trainer")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def steps(self) -> list[Json]:
        """Return the script's own steps: step, loss, step_seconds, unix_seconds."""
        return [line for line in self.log_lines() if line["event"] == "step"]

    def all_lines(self) -> list[Json]:
        """Return what the logging rank has printed, in whatever pod it ran, oldest first."""
        texts = [self.kubectl.run("logs", pod["metadata"]["name"], "-c", "trainer") for pod in self.pods()]
        found = [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]
        return sorted(found, key=lambda line: float(line.get("unix_seconds", 0.0)))

    def restarted_seconds(self) -> float | None:
        """Return when the newest restart of the processes made its first step, unix seconds; None: not yet."""
        lines = self.log_lines()
        starts = [index for index, line in enumerate(lines) if line["event"] == "start"]
        after = lines[starts[-1] :] if len(starts) > 1 else []
        return next((float(line["unix_seconds"]) for line in after if line["event"] == "step"), None)

    def step_seconds(self, what: str, matches: Callable[[Json], bool], count: int) -> float:
        """Return the median time of the newest steps by the script's own clock, once so many in a row match."""

        def newest() -> list[Json] | None:
            steps = self.steps()[-count:]
            return steps if len(steps) == count and all(map(matches, steps)) else None

        found = wait_for(what, newest, timeout_seconds=300, last_seen=lambda: str(self.steps()[-3:]))
        return statistics.median(step["step_seconds"] for step in found)

    def own_clock_seconds(self, last: int = 20) -> float:
        """Return the median step time of the newest steps by the script's own clock."""
        return statistics.median(step["step_seconds"] for step in self.steps()[-last:])

    def delete(self, timeout_seconds: float = 120) -> None:
        self.kubectl.run(
            "delete", "trainingjob", self.name, "--ignore-not-found", "--wait", timeout_seconds=timeout_seconds
        )
        wait_for(
            "the job's pods are gone",
            lambda: not self.pods(),
            timeout_seconds=timeout_seconds,
            last_seen=lambda: str([pod["metadata"]["name"] for pod in self.pods()]),
        )


def without_common_cause(status: Json) -> Json:
    """Return the status as it would be if nothing slowed all ranks alike."""
    notes = [note for note in status.get("diagnoses", []) if note.get("cause") != COMMON_CAUSE]
    found = {**status, "diagnoses": notes} if "diagnoses" in status else status
    if condition(status, "Degraded").get("reason") != COMMON_CAUSE:
        return found
    conditions = [{**each, "status": "False"} if each["type"] == "Degraded" else each for each in status["conditions"]]
    state = "Running" if status.get("state") == "Degraded" else status.get("state")
    return {**found, "conditions": conditions, "state": state}


def condition(status: Json, type_: str) -> Json:
    """Return a condition by type; empty where it has not been set."""
    return next((entry for entry in status.get("conditions", []) if entry["type"] == type_), {})


def check_losses(steps: list[Json], expected: dict[int, float]) -> None:
    """Check that a job which was interrupted has left out no step, and has the losses of an undisturbed job.

    ``expected``: the undisturbed job's losses, by step, as far as it went. A step may have been made more than once.
    """
    done = [(step["step"], step["loss"]) for step in steps]
    assert {number: loss for number, loss in done if number in expected}.items() <= expected.items()
    losses: dict[int, float] = {}
    for number, loss in done:
        assert losses.setdefault(number, loss) == loss, "what is done again comes out bit for bit"
    assert sorted(losses) == list(range(1, len(losses) + 1)), "no step is left out"
