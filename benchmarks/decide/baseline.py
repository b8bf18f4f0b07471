"""The code of commit a9e84fb, as ``benchmarks.decide.timing`` drives it.

It runs by itself, with that commit's packages on PYTHONPATH: they have other modules than this checkout, so they are
imported by name.
"""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from benchmarks.decide.description import Job, Look
from benchmarks.decide.timing import main

api: Any = importlib.import_module("falcon_operator.api")
ports: Any = importlib.import_module("falcon_operator.base.ports")
snapshot: Any = importlib.import_module("falcon_operator.reconcile.snapshot")
job: Any = importlib.import_module("falcon_operator.reconcile.job")


class Baseline:
    """All that is stored stands in the status."""

    def __init__(self, described: Job) -> None:
        self._described = described
        template = {"spec": {"containers": [{"name": "trainer", "image": "x:1", "command": ["python", "t.py"]}]}}
        spec: dict[str, Any] = {
            "replicas": len(described.pods),
            "procsPerReplica": described.procs,
            "parallelism": {"tensor": described.tensor, "pipeline": described.pipeline},
            "template": template,
        }
        members = [
            api.Member(
                replica=replica, pod_name=pod.name, pod_uid=pod.uid, node=pod.node, first_rank=replica * described.procs
            )
            for replica, pod in enumerate(described.pods)
        ]
        since = snapshot.timestamp(described.running_since)
        generation = api.Generation(
            number=1,
            phase="Run",
            master_addr=described.pods[0].ip,
            master_port=20_000,
            members=members,
            started_at=since,
        )
        self._job = api.TrainingJob(
            metadata=api.ObjectMeta(
                name=described.name, namespace=described.namespace, uid=described.uid, generation=1
            ),
            spec=msgspec.convert(spec, api.TrainingJobSpec),
            status=api.TrainingJobStatus(generation=generation, start_time=since),
        )
        trainer = ports.ContainerView(name="trainer", running=True, ready=True)
        agent = ports.ContainerView(name="falcon-agent", running=True)
        self._pods = [
            ports.PodView(
                namespace=described.namespace,
                name=pod.name,
                uid=pod.uid,
                node=pod.node,
                pod_ip=pod.ip,
                phase="Running",
                containers={"trainer": trainer, "falcon-agent": agent},
            )
            for pod in described.pods
        ]

    def snapshot(self, look: Look) -> Any:
        reports = ports.JobReports(
            summaries={
                summary.pod_uid: ports.Received(summary=summary, at_seconds=look.received_at)
                for summary in look.reports
            },
            alive=frozenset(summary.pod_uid for summary in look.reports),
            session_healthy_since_seconds=0.0,
        )
        return snapshot.Snapshot(
            job=self._job,
            pods=self._pods,
            nodes={pod.node: ports.NodeView(name=pod.node) for pod in self._described.pods},
            reports=reports,
            settings=snapshot.PodSettings(agent_image="agent:1", etcd_endpoints="https://etcd:2379"),
            now=look.now,
            monotonic=look.monotonic,
        )

    def decide(self, snap: Any) -> Any:
        return job.decide(snap)

    def store(self, decision: Any) -> None:
        self._job = msgspec.structs.replace(self._job, status=decision.status)

    def sizes(self) -> dict[str, int]:
        return {"status": len(msgspec.json.encode(self._job.status))}


if __name__ == "__main__":
    main(Baseline)
