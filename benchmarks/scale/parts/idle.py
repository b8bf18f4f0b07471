"""How many requests the operator sends to the API server while nothing happens.

The jobs are real and the operator makes their pods; no kubelet runs, so the pods wait for a node and nothing changes.
What the API server counts without the operator (its own requests) is subtracted.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.scale.processes import cpu_seconds, resident_mib
from tests.integration.api.apiserver import ApiServer, running_store, serving
from tests.integration.operator.cluster import CRDS, Installation, until
from tests.integration.ports import free_port

JOBS: Final = 200
REPLICAS: Final = 4  # requests depend on jobs, not on pods; making 12 800 pods takes minutes
MOST_REQUESTS: Final = 20.0  # per second
QUIET_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 300.0
NAMESPACE: Final = "falcon-system"
_COUNT = re.compile(r'^apiserver_request_total\{[^}]*verb="(?!WATCH)[^}]*\} (\S+)$', re.MULTILINE)


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """What one run measured."""

    jobs: int
    requests_per_second: float
    cpu_share: float  # of a core, of the operator alone
    resident_mib: float

    def table(self) -> str:
        """Return the figures as a Markdown table."""
        return "\n".join(
            [
                "| jobs whose pods wait for a node | requests a second | operator, % of a core | MiB |",
                "|---|---|---|---|",
                f"| {self.jobs} × {REPLICAS} pods | {self.requests_per_second:.2f} | {100 * self.cpu_share:.0f}"
                f" | {self.resident_mib:.0f} |",
                "",
            ]
        )


def measure(jobs: int = JOBS) -> Idle:
    """Measure with that many jobs, on a server of its own."""
    with running_store() as store, serving(store, free_port()) as api, tempfile.TemporaryDirectory() as folder:
        api.ok("kubectl", "apply", "--server-side", "-f", str(CRDS))
        api.ok("kubectl", "wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
        api.ok("kubectl", "create", "namespace", NAMESPACE)
        alone, _ = _counted(api, QUIET_SECONDS / 3)
        installation = Installation(api, NAMESPACE, Path(folder))
        try:
            operator = installation.operator("op", FALCON_LOG_LEVEL="info")
            installation.start_etcd()
            until(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0, seconds=WAIT_SECONDS)
            manifests = "\n---\n".join(json.dumps(_job(number)) for number in range(jobs))
            api.ok("kubectl", "create", "-f", "-", stdin=manifests)
            until(lambda: _pods(api) == jobs * REPLICAS, seconds=WAIT_SECONDS, every=2.0)
            time.sleep(QUIET_SECONDS / 2)  # for the last writes
            assert operator.process is not None
            used = cpu_seconds(operator.process.pid)
            requests, seconds = _counted(api, QUIET_SECONDS)
            used = cpu_seconds(operator.process.pid) - used
            resident = resident_mib(operator.process.pid)
        finally:
            installation.stop()
    return Idle(
        jobs=jobs,
        requests_per_second=requests - alone,
        cpu_share=used / seconds,
        resident_mib=resident,
    )


def _job(number: int) -> dict[str, Any]:
    container = {"name": "t", "image": "x:1", "command": ["python", "t.py"]}
    return {
        "apiVersion": "falcon.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"job-{number}", "namespace": NAMESPACE},
        "spec": {"replicas": REPLICAS, "template": {"spec": {"containers": [container]}}},
    }


def _pods(api: ApiServer) -> int:
    metadata = json.loads(api.ok("kubectl", "get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods?limit=1"))["metadata"]
    return 1 + int(metadata.get("remainingItemCount", 0))


def _counted(api: ApiServer, seconds: float) -> tuple[float, float]:
    """Return the API server's requests per second over a while, watches left out, and the length of the while."""
    before, began = answered(api), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    rate = (answered(api) - before) / passed
    print(f"{rate:.2f} requests a second", file=sys.stderr, flush=True)
    return rate, passed


def answered(api: ApiServer) -> float:
    """Return how many requests the API server has answered, watches left out."""
    return sum(float(count) for count in _COUNT.findall(api.ok("kubectl", "get", "--raw", "/metrics")))
