"""Run ``kubectl falcon export``: write what a bug report needs into one archive, without secrets.

What may not be read, or is not there, is named in the archive and on stderr; the rest is written all the same.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from falcon_core import __version__
from kubectl_falcon.kubectl import RUNS, Kubectl, find_job
from kubectl_falcon.objects import Job, items_of, job_of
from kubectl_falcon.redact import Redaction, secret_values
from kubectl_falcon.trouble import TroubleError

AGENT_CONTAINER = "falcon-agent"
MOST_PODS = 256
MOST_LOGS = 8  # agents whose logs are read: those of the ranks that diagnoses name come first
LOG_BYTES = 256 * 1024  # the end of each log
_NODE_PARTS = {"spec": ("taints", "unschedulable"), "status": ("conditions", "nodeInfo", "allocatable")}
_CONTENTS = """\
A report of Falcon about the TrainingJob {name}.

Taken out: values of environment variables and HTTP headers, what looks like a secret, and the output of the training
program. Names of nodes, pods and images, the command, and the program's last words in the diagnoses are in it: read it
before you publish it.
{missing}
"""
T = TypeVar("T")


class Gathered:
    """Objects and logs by their file's name, and what is missing."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.logs: dict[str, str] = {}
        self.missing: list[str] = []

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what ``read`` returns; None, with a line for the reader, where it is refused."""
        try:
            return read()
        except TroubleError as error:
            self.missing.append(f"{what}: {error}")
            return None


def gather(kubectl: Kubectl, name: str, falcon_namespace: str) -> Gathered:
    """Read all that belongs to a job. Raises TroubleError where the job itself cannot be read."""
    body = find_job(kubectl, name)
    job = job_of(body)
    inside = kubectl.within(job.namespace)
    found = Gathered()
    found.objects["trainingjob.json"] = body
    found.objects["trainingrun.json"] = found.attempt("the TrainingRun", lambda: inside.get(RUNS, name))
    pods = found.attempt("the job's pods", lambda: inside.list_all("pods", f"--selector=falcon.dev/job={name}"))
    found.objects["pods.json"] = listed = items_of(pods or {})[:MOST_PODS]
    found.objects["events.json"] = found.attempt(
        "Events", lambda: items_of(inside.list_all("events", *events_of_job(name)))
    )
    # Only nodes that the job uses or has used: others are no business of this report.
    nodes = {str(pod.get("spec", {}).get("nodeName", "")) for pod in listed} | {note.node for note in job.diagnoses}
    every = found.attempt("nodes", lambda: items_of(kubectl.list_all("nodes", scope="Cluster")))
    found.objects["nodes.json"] = [_node(each) for each in every or [] if each["metadata"]["name"] in nodes]
    if job.pool:
        found.objects["warmpool.json"] = found.attempt(
            "the WarmPool", lambda: kubectl.get("warmpools.falcon.dev", job.pool, scope="Cluster")
        )
    # Plugin, client and server may be of different releases, which explains many reports.
    versions = found.attempt("versions", kubectl.version)
    found.objects["versions.json"] = {"plugin": __version__, "kubectl": versions}
    _agent_logs(inside, job, listed, found)
    _falcon(kubectl.within(falcon_namespace), falcon_namespace, found)
    return found


def events_of_job(name: str) -> tuple[str, ...]:
    """Return the flags that select a job's Events."""
    return (f"--field-selector=involvedObject.kind=TrainingJob,involvedObject.name={name}",)


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return what concerns Falcon of a node; its addresses, images and annotations stay out."""
    meta = node["metadata"]
    parts = {
        part: {field: node.get(part, {}).get(field) for field in fields if field in node.get(part, {})}
        for part, fields in _NODE_PARTS.items()
    }
    return {"metadata": {"name": meta["name"], "labels": meta.get("labels", {})}, **parts}


def _agent_logs(kubectl: Kubectl, job: Job, pods: list[dict[str, Any]], found: Gathered) -> None:
    suspected = " ".join(note.where for note in job.diagnoses)
    names = sorted((str(pod["metadata"]["name"]) for pod in pods), key=lambda name: (name not in suspected, name))
    for name in names[:MOST_LOGS]:
        _log(kubectl, name, AGENT_CONTAINER, job.namespace, f"logs/{name}.{AGENT_CONTAINER}.log", found)
    if len(names) > MOST_LOGS:
        found.missing.append(f"logs of {len(names) - MOST_LOGS} more agents: {MOST_LOGS} are kept")


def _falcon(kubectl: Kubectl, namespace: str, found: Gathered) -> None:
    """Read the operator's and the gateways' logs, and which images they run."""
    selector = "--selector=app.kubernetes.io/component in (operator,gateway)"
    pods = found.attempt("Falcon's own pods", lambda: items_of(kubectl.list_all("pods", selector)))
    # An empty list usually means that Falcon runs in another namespace.
    if pods == []:
        found.missing.append(
            f"Falcon's own pods: none in namespace {namespace}; choose another with --falcon-namespace"
        )
    for pod in pods or []:
        name, spec = str(pod["metadata"]["name"]), pod.get("spec", {})
        component = pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")
        containers = {each["name"]: each.get("image", "") for each in spec.get("containers", [])}
        found.objects.setdefault("falcon.json", []).append(
            {"pod": name, "component": component, "images": containers, "status": pod.get("status", {})}
        )
        for container in containers:
            _log(kubectl, name, container, namespace, f"logs/{name}.{container}.log", found)


def _log(kubectl: Kubectl, pod: str, container: str, namespace: str, file: str, found: Gathered) -> None:
    text = found.attempt(f"log of {pod}", lambda: kubectl.logs(pod, container, namespace, LOG_BYTES))
    if text is not None:
        found.logs[file] = text


def files(found: Gathered, name: str) -> dict[str, bytes]:
    """Return the archive's files by name, redacted. Pure."""
    redaction = Redaction(secret_values(found.objects.values()))
    contents = {
        file: json.dumps(redaction.value(value), indent=1, ensure_ascii=False).encode()
        for file, value in found.objects.items()
        if value is not None
    }
    contents |= {file: redaction.text(text).encode() for file, text in found.logs.items()}
    missing = "".join(f"Missing: {redaction.text(line)}\n" for line in found.missing)
    contents["README.txt"] = _CONTENTS.format(name=name, missing=missing).encode()
    return contents


def write(contents: Mapping[str, bytes], path: Path, name: str, now: float) -> None:
    """Write the archive, readable for its owner alone. Raises OSError; FileExistsError where the file is there."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file, data in sorted(contents.items()):
            entry = tarfile.TarInfo(f"falcon-{name}/{file}")
            entry.size, entry.mtime, entry.mode = len(data), int(now), 0o600
            archive.addfile(entry, io.BytesIO(data))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as output:
        output.write(packed.getvalue())
