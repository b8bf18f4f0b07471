"""How long the operator takes to know all pods and nodes of a large cluster, and the memory that they take.

Beside it stands kopf's own watch of the same pods, which the operator used before. kopf starts a task for each object.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.scale.crowd import prepare
from benchmarks.scale.processes import resident_mib
from benchmarks.scale.watchers import Measured
from tests.integration.api.apiserver import ApiServer, running_store, serving
from tests.integration.operator.cluster import CRDS, Installation, until
from tests.integration.ports import free_port

ROOT: Final = Path(__file__).resolve().parents[3]
MOST_SECONDS: Final = 15.0  # from the start of the process until it knows all pods and nodes
MOST_BYTES: Final = 2048  # of memory for a pod
WAIT_SECONDS: Final = 600.0
OPERATOR_NAMESPACE: Final = "falcon-system"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one run measured."""

    pods: int
    operator_seconds: float
    operator_mib: float  # resident, when it knows everything
    inventory: Measured
    kopf: Measured
    pod_bytes: float

    def table(self) -> str:
        """Return the figures as a Markdown table."""
        watchers = {"mirrors of pods and nodes alone": self.inventory, "kopf, pods alone": self.kopf}
        rows = [("operator: process started → all pods and nodes known", self.operator_seconds, "", self.operator_mib)]
        rows += [
            (f"{name}: {found.objects} objects", found.seconds, f"{found.cpu_seconds:.1f}", found.grown_mib)
            for name, found in watchers.items()
        ]
        lines = [f"| {self.pods} pods on as many nodes | s | CPU s | MiB |", "|---|---|---|---|"]
        lines += [f"| {what} | {seconds:.1f} | {cpu} | {mib:.0f} |" for what, seconds, cpu, mib in rows]
        lines += ["", f"A running pod takes {self.pod_bytes:.0f} bytes of Python's memory (limit {MOST_BYTES}).", ""]
        return "\n".join(lines)


def measure(pods: int) -> Figures:
    """Measure with that many pods, on a server of its own."""
    with running_store() as store, serving(store, free_port()) as api:
        api.ok("kubectl", "apply", "--server-side", "-f", str(CRDS))
        api.ok("kubectl", "wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
        prepare(api, store, pods)
        watchers = {what: _watcher(api, what, pods) for what in ("inventory", "kopf", "memory")}
        seconds, mib = _operator(api)
    return Figures(
        pods=pods,
        operator_seconds=seconds,
        operator_mib=mib,
        inventory=watchers["inventory"],
        kopf=watchers["kopf"],
        pod_bytes=watchers["memory"].traced_bytes,
    )


def _watcher(api: ApiServer, what: str, pods: int) -> Measured:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale.watchers", what, str(pods)],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": str(api.kubeconfig)},
        check=True,
        stdout=subprocess.PIPE,
        timeout=WAIT_SECONDS,
    )
    print(f"{what}: done", file=sys.stderr, flush=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Measured)


def _operator(api: ApiServer) -> tuple[float, float]:
    """Start the operator; return the seconds until it knows all pods and nodes, and its resident memory (MiB) then."""
    api.ok("kubectl", "create", "namespace", OPERATOR_NAMESPACE)
    with tempfile.TemporaryDirectory(prefix="falcon-scale-") as folder:
        installation = Installation(api, OPERATOR_NAMESPACE, Path(folder))
        try:
            began = time.monotonic()
            operator = installation.operator("op", FALCON_WATCH_NAMESPACES="", FALCON_LOG_LEVEL="info")
            until(lambda: operator.logged("pods and nodes listed"), seconds=WAIT_SECONDS, every=0.1)
            seconds = time.monotonic() - began
            assert operator.process is not None
            return seconds, resident_mib(operator.process.pid)
        finally:
            installation.stop()
