"""What the operator costs, idle and under reports, and how long a killed leader is missed; real API server and etcd.

    make venv cluster-build && python -m benchmarks.operator_load

No kubelet runs: the pods exist, and this program writes their agents' reports, one a pod and second, as a gateway
writes them. Resident memory
and CPU are the operator's own, from /proc.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from falcon_core.wire.keys import GATEWAYS, JobKey
from falcon_core.wire.reporting.messages import RankSignals, Summary
from falcon_core.wire.reporting.reports import encode_summary
from falcon_gateway import Batch, Entry
from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.operator.cluster import Installation, Operator, until

CRDS: Final = Path(__file__).resolve().parents[1] / "crds"
JOBS: Final = 50
REPLICAS: Final = 4
IDLE_SECONDS: Final = 20.0
REPORT_SECONDS: Final = 30.0
TAKEOVERS: Final = 3
NAMESPACE: Final = "load"


def rss_mib(operator: Operator) -> float:
    assert operator.process is not None
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def cpu_seconds(operator: Operator) -> float:
    assert operator.process is not None
    fields = Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def a_job(number: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "t", "image": "x:1", "command": ["python", "t.py"]}]}}
    return {
        "apiVersion": "falcon.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"job-{number}", "namespace": NAMESPACE},
        "spec": {"replicas": REPLICAS, "template": template},
    }


async def report(installation: Installation) -> int:
    """Write one batch a job and second, as a gateway does; return how many reports were written."""
    jobs, pods = installation.get("trainingjobs"), installation.get("pods")
    keys = {job["metadata"]["name"]: JobKey(NAMESPACE, job["metadata"]["name"], job["metadata"]["uid"]) for job in jobs}
    uids: dict[JobKey, list[str]] = {}
    for pod in pods:
        uids.setdefault(keys[pod["metadata"]["labels"]["falcon.dev/job"]], []).append(pod["metadata"]["uid"])
    written = 0
    ends = time.monotonic() + REPORT_SECONDS
    async with installation.etcd.client() as client:
        registration = {"operator": "127.0.0.1:1", "incarnation": 1}  # no stream: the batches come by etcd
        await client.put(f"{GATEWAYS}load", json.dumps(registration).encode())
        for number in itertools.count(1):
            began = time.monotonic()
            if began >= ends:
                break
            for index, (key, members) in enumerate(uids.items()):
                batch = Batch(
                    gateway="load",
                    incarnation=1,
                    number=number * len(uids) + index,
                    namespace=key.namespace,
                    job=key.name,
                    job_uid=key.uid,
                    entries=[
                        Entry(pod_uid=uid, session=1, change=number, alive=True, payload=payload(uid, number))
                        for uid in members
                    ],
                )
                await client.put(f"{key.reports('load')}hot", batch.SerializeToString())
                written += len(members)
            await asyncio.sleep(max(0.0, began + 1.0 - time.monotonic()))
    return written


def payload(pod_uid: str, number: int) -> bytes:
    signals = RankSignals(rank=0, tracking="Tracking", iteration_ns=[1] * 16, compute_ns=[1] * 16, wait_ns=[1] * 16)
    summary = Summary(pod_uid=pod_uid, sequence=number, unix_ns=time.time_ns(), generation=1, ranks=[signals])
    return encode_summary(summary, ())


def load(installation: Installation) -> None:
    operator = installation.operator("op-load", FALCON_LOG_LEVEL="info")
    began = time.monotonic()
    installation.start_etcd()
    until(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)
    print(f"start to a healthy session (etcd's own start included): {time.monotonic() - began:.1f} s")
    used, began = cpu_seconds(operator), time.monotonic()
    time.sleep(IDLE_SECONDS)
    share = (cpu_seconds(operator) - used) / (time.monotonic() - began)
    print(f"idle: {rss_mib(operator):.0f} MiB, {100 * share:.1f} % of a core")
    began = time.monotonic()
    manifests = "\n---\n".join(json.dumps(a_job(number)) for number in range(JOBS))
    installation.api.ok("kubectl", "apply", "--server-side", "-f", "-", stdin=manifests)
    until(lambda: len(installation.get("pods")) == JOBS * REPLICAS, seconds=300, every=1.0)
    print(f"{JOBS} jobs of {REPLICAS} pods applied and their pods made: {time.monotonic() - began:.1f} s")
    used, began = cpu_seconds(operator), time.monotonic()
    written = asyncio.run(report(installation))
    seconds = time.monotonic() - began
    share = (cpu_seconds(operator) - used) / seconds
    print(f"{written / seconds:.0f} reports a second: {rss_mib(operator):.0f} MiB, {100 * share:.1f} % of a core")


def takeovers(installation: Installation) -> None:
    """Measure from SIGKILL of the leader to the standby's heartbeat in etcd."""
    leader = next(replica for replica in installation.operators if replica.metric("falcon_leading") == 1.0)
    for number in range(TAKEOVERS):
        standby = installation.operator(f"op-{number}", FALCON_LOG_LEVEL="info")
        until(lambda replica=standby: replica.logged("standby"))
        leader.kill()
        began = time.monotonic()
        until(lambda replica=standby: replica.metric("falcon_etcd_session_healthy") == 1.0, every=0.05)
        print(f"leader killed, standby leads with a healthy session: {time.monotonic() - began:.1f} s")
        leader = standby


def main() -> None:
    with running_apiserver() as api, tempfile.TemporaryDirectory(prefix="falcon-bench-") as folder:
        prepare(api)
        installation = Installation(api, NAMESPACE, Path(folder))
        try:
            load(installation)
            takeovers(installation)
        finally:
            installation.stop()


def prepare(api: ApiServer) -> None:
    api.ok("kubectl", "apply", "--server-side", "-f", str(CRDS))
    api.ok("kubectl", "wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
    api.ok("kubectl", "create", "namespace", NAMESPACE)


if __name__ == "__main__":
    main()
