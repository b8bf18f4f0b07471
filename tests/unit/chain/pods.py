"""The whole path of a signal: ring files → the agents' trackers → reports as JSON → what the operator decides."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from falcon_agent.reporting.schedule import ReportSchedule
from falcon_agent.rings.tracker import Tracker
from falcon_core.recovery.model.membership import Member, Membership
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.wire import ring
from falcon_core.wire.launcher.launch import RINGS_DIR, LaunchRank, LaunchStatus
from falcon_core.wire.reporting.messages import Detection, RankSignals, Summary, ThrottleSignals
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from falcon_operator.api.common import ANNOTATION_CHECK, ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec, TrainingJobStatus
from falcon_operator.base.effects import AskDetail, Effect, Event
from falcon_operator.base.ports import JobReports, NodeView, PodSettings, PodView, Received
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.job.decide import decide
from tests.unit.agent.ring_files import descriptor, write_ring
from tests.unit.signals.members import Job

SECOND = 1_000_000_000
MONOTONIC = 5_000.0
Groups = Mapping[int, Sequence[Sequence[int]]]  # by communicator id: its groups of ranks
replace = msgspec.structs.replace


class Tracked:
    """One rank's agent, after it has read the rank's ring once."""

    def __init__(self, folder: Path, rank: int, job: Job, groups: Groups, counters: dict[int, tuple[int, int]]) -> None:
        self._now_ns = 0
        self.rank = rank
        records = job.records(rank)
        self._end_ns = int((records["t_start_ns"] + records["duration_ns"]).max())
        introduced = [
            descriptor(comm, len(group), list(group).index(rank))
            for comm, comm_groups in groups.items()
            for group in comm_groups
            if rank in group
        ]
        run_dir = folder / f"pod-{rank}"
        (run_dir / RINGS_DIR).mkdir(parents=True)
        write_ring(
            run_dir / RINGS_DIR / f"g1-r{rank}-100.ring",
            np.concatenate((*introduced, records)),
            rank=rank,
            world_size=job.ranks,
            counters=counters,
        )
        self.tracker = Tracker(run_dir, monotonic_ns=lambda: self._now_ns)
        self.tracker.poll([f"g1-r{rank}-100.ring"])

    def signals(self, silent_seconds: float, *, asked: bool = False) -> RankSignals:
        """Return the rank's report, ``silent_seconds`` after the end of its last call. ``asked``: by the operator."""
        self._now_ns = self._end_ns + int(silent_seconds * SECOND)
        (report,) = self.tracker.signals(1, [self.rank] if asked else [])
        return report


def agents(
    folder: Path,
    job: Job,
    groups: Groups,
    inside: Mapping[int, Sequence[int]] | None = None,
    pairs: Mapping[int, Mapping[int, tuple[int, int]]] | None = None,
) -> list[Tracked]:
    """Return one agent for each rank.

    ``inside``: by communicator, the ranks that have begun one call more than the finished calls.
    ``pairs``: by rank, the counts of its sends and receives, by counter key.
    """
    tracked = []
    for rank in range(job.ranks):
        records = job.records(rank)
        counters = dict((pairs or {}).get(rank, {}))
        for comm in np.unique(records["comm"]).tolist():
            done = int((records["comm"] == comm).sum())
            entered = done + (rank in (inside or {}).get(comm, ()))
            counters[ring.counter_key(comm, ring.Traffic.COLLECTIVE)] = (entered, done)
        tracked.append(Tracked(folder, rank, job, groups, counters))
    return tracked


class Operator:
    """An operator that looks every two seconds at a job with one rank in each pod and one pod on each node."""

    def __init__(self, ranks: int, spec: dict[str, Any] | None = None, healthy_ns: int | None = None) -> None:
        self.now = time.time()
        members = [
            Member(replica=rank, pod_name=f"gpt2-{rank}", pod_uid=f"uid-{rank}", node=f"node-{rank}", first_rank=rank)
            for rank in range(ranks)
        ]
        body = {
            "replicas": ranks,
            "template": {"spec": {"containers": [{"name": "t", "image": "x", "command": ["python"]}]}},
            **(spec or {}),
        }
        self.intent = Intent(
            membership=Membership(generation=1, phase="Run", since=self.now - 600, members=members),
            master_addr="10.0.0.1",
            master_port=1,
            recovery=RecoveryState(levels=Levels(healthy_ns=healthy_ns)),
        )
        self.job = TrainingJob(
            metadata=ObjectMeta(name="gpt2", namespace="ml", uid="u"),
            spec=msgspec.convert(body, TrainingJobSpec),
        )
        self.events: list[Event] = []
        self.asked: list[int] = []
        self.effects: list[Effect] = []  # of the newest decision
        self.addresses: dict[str, str] = {}  # of the pods, by node
        self._schedules = [ReportSchedule("u") for _ in range(ranks)]

    @property
    def status(self) -> TrainingJobStatus:
        return self.job.status

    def ask_for_check(self, value: str) -> None:
        """Ask for a check, as ``kubectl falcon check`` does."""
        metadata = msgspec.structs.replace(self.job.metadata, annotations={ANNOTATION_CHECK: value})
        self.job = msgspec.structs.replace(self.job, metadata=metadata)

    def message(self, condition: str) -> str:
        return next((entry.message for entry in self.status.conditions if entry.type == condition), "")

    def look(self, reports: Sequence[RankSignals], throttle: ThrottleSignals | None = None) -> None:
        """Take one report of each rank, in as much detail as its agent would send, and decide."""
        self.now += 2.0
        members = self.intent.membership.members
        summaries = {}
        for number, (member, report) in enumerate(zip(members, reports, strict=True)):
            rank = LaunchRank(
                local_rank=0, rank=number, pid=7, state="Running", started_unix_ns=int((self.now - 900) * 1e9)
            )
            summary = Summary(
                pod_uid=member.pod_uid,
                sequence=1,
                unix_ns=time.time_ns(),
                generation=1,
                launch=LaunchStatus(generation=1, dead_below=1, state="Running", ranks=[rank]),
                ranks=[msgspec.structs.replace(report, rank=number)],
                throttle=throttle,
            )
            detailed = self._schedules[number].detail_due(
                summary, asked=self.asked, detection=Detection(), urgent=True, now=self.now
            )
            received = decode_summary(encode_summary(summary, detailed or ()), member.pod_uid)
            summaries[member.pod_uid] = Received(summary=received, at_seconds=MONOTONIC)
        self.decide(summaries)

    def decide(self, summaries: dict[str, Received], monotonic: float = MONOTONIC, nonce: str = "") -> None:
        """Decide by the newest reports, by pod uid."""
        members = self.intent.membership.members
        snap = Snapshot(
            job=self.job,
            intent=self.intent,
            pods=[
                PodView(
                    namespace="ml",
                    name=member.pod_name,
                    uid=member.pod_uid,
                    node=member.node,
                    phase="Running",
                    pod_ip=self.addresses.get(member.node, ""),
                )
                for member in members
            ],
            nodes={member.node: NodeView(name=member.node) for member in members},
            reports=JobReports(
                summaries=summaries, alive=frozenset(summaries), session_healthy_since_seconds=monotonic - 100
            ),
            settings=PodSettings(agent_image="a", gateways="g:1"),
            now=self.now,
            nonce=nonce,
            monotonic=monotonic,
            phase_seen_at=monotonic - 600,
        )
        decision = decide(snap)
        assert decision.intent is not None
        self.intent = decision.intent
        self.events += decision.events
        self.effects = decision.effects
        self.asked = [rank for effect in decision.effects if isinstance(effect, AskDetail) for rank in effect.ranks]
        self.job = replace(self.job, status=decision.status)
