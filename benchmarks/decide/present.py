"""The code of this checkout, as ``benchmarks.decide.timing`` drives it."""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks.decide.description import Job, Look
from benchmarks.decide.timing import main
from falcon_core.recovery.model.membership import Member, Membership
from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.base.ports import ContainerView, JobReports, NodeView, PodSettings, PodView, Received
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.run import build_run, encode
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.job.decide import Decision, decide


class Present:
    """The present code; stores intent and status as the reconciler does."""

    def __init__(self, described: Job) -> None:
        self._described = described
        template = {"spec": {"containers": [{"name": "trainer", "image": "x:1", "command": ["python", "t.py"]}]}}
        spec: dict[str, Any] = {
            "replicas": len(described.pods),
            "procsPerReplica": described.procs,
            "parallelism": {"tensor": described.tensor, "pipeline": described.pipeline},
            "template": template,
        }
        self._job = TrainingJob(
            metadata=ObjectMeta(name=described.name, namespace=described.namespace, uid=described.uid, generation=1),
            spec=msgspec.convert(spec, TrainingJobSpec),
        )
        members = [
            Member(
                replica=replica, pod_name=pod.name, pod_uid=pod.uid, node=pod.node, first_rank=replica * described.procs
            )
            for replica, pod in enumerate(described.pods)
        ]
        self._intent = Intent(
            membership=Membership(
                generation=1,
                phase="Run",
                since=described.running_since,
                members=members,
                pods_made=len(members),
            ),
            master_addr=described.pods[0].ip,
            master_port=20_000,
            started_at=described.running_since,
        )
        trainer = ContainerView(name="trainer", running=True, ready=True)
        self._pods = [
            PodView(
                namespace=described.namespace,
                name=pod.name,
                uid=pod.uid,
                node=pod.node,
                pod_ip=pod.ip,
                phase="Running",
                containers={"trainer": trainer, "falcon-agent": ContainerView(name="falcon-agent", running=True)},
            )
            for pod in described.pods
        ]

    def snapshot(self, look: Look) -> Snapshot:
        reports = JobReports(
            summaries={
                summary.pod_uid: Received(summary=summary, at_seconds=look.received_at) for summary in look.reports
            },
            alive=frozenset(summary.pod_uid for summary in look.reports),
            session_healthy_since_seconds=0.0,
        )
        return Snapshot(
            job=self._job,
            intent=self._intent,
            pods=self._pods,
            nodes={pod.node: NodeView(name=pod.node) for pod in self._described.pods},
            reports=reports,
            settings=PodSettings(agent_image="agent:1", gateways="gateway:7443"),
            now=look.now,
            monotonic=look.monotonic,
            phase_seen_at=look.monotonic - (look.now - self._described.running_since),
        )

    def decide(self, snap: Snapshot) -> Decision:
        return decide(snap)

    def store(self, decision: Decision) -> None:
        assert decision.intent is not None
        self._intent = decision.intent
        self._job = msgspec.structs.replace(self._job, status=decision.status)

    def sizes(self) -> dict[str, int]:
        run = build_run(self._job, encode(self._job, self._intent), "1")
        return {"status": len(msgspec.json.encode(self._job.status)), "run": len(msgspec.json.encode(run))}


if __name__ == "__main__":
    main(Present)
