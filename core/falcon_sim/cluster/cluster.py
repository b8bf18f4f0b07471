"""Simulate the pods, launchers, leases and generations of a job, and what the operator sees of them.

Core decides what an action means for the membership (``recovery.model.membership``), as in the operator. Here the pods
that it names are made on nodes, with the cluster's own times. The Observation is built from what is visible: exits,
leases, node conditions, reports.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

import msgspec

from falcon_core.recovery import (
    Command,
    LauncherSeen,
    MemberSeen,
    Membership,
    NodeHealth,
    Observation,
    PreparedSeen,
    RankSeen,
    RecoveryState,
    Recreate,
    Restart,
    Spares,
    apply_actions,
)
from falcon_core.recovery.views import first_membership, left_nodes
from falcon_core.wire.reporting.messages import RankSignals
from falcon_sim.agents import Agents
from falcon_sim.cluster.machines import Machines
from falcon_sim.job.scenario import Scenario, StopFault

NOT_READY_SECONDS = 40.0  # Kubernetes' node monitor grace period
_RECALL_SECONDS = 30.0  # between two looks for a node of last resort
_SIGKILL = 9
_BREAK_SECONDS = 0.05  # after which the peers' collectives fail
replace = msgspec.structs.replace


class _Pod(msgspec.Struct):
    """A pod that the membership names."""

    name: str
    node: int | None  # None: awaits a spare
    present_at: float = 0.0
    died_at: float | None = None  # with its node
    asked_at: float = 0.0  # for a node

    def ready(self, now: float) -> bool:
        """Check whether the pod runs on a node that lives."""
        return self.node is not None and self.died_at is None and self.present_at <= now


class _Names:
    """The names of pods and claims that the membership asks for."""

    pool = "spares"

    def pod(self, replica: int, number: int) -> str:
        return f"job-{replica}-{number}"

    def claim(self, number: int) -> str:
        return f"claim-{number}"


class _End(msgspec.Struct, frozen=True):
    signal: int | None
    exit_code: int | None
    at: float


class Cluster:
    """The job's pods over time. All times are the simulator's seconds."""

    def __init__(self, scenario: Scenario, machines: Machines) -> None:
        self._times = scenario.cluster
        self._procs = scenario.job.procs_per_node
        self._machines = machines
        self._names = _Names()
        founded = first_membership(Membership(), self._names, replicas=len(machines.roles), procs=self._procs, now=0.0)
        self._membership = replace(founded, phase="Run")
        names = [member.pod_name for member in founded.members]
        self._pods = {name: _Pod(name, node) for name, node in zip(names, machines.roles, strict=True)}
        self._ends: dict[int, _End] = {}
        self._ordered_at = 0.0  # to stop
        self._acknowledged_at = 0.0
        self.trains_at = scenario.cluster.start_seconds  # if nothing happens before
        self._recall_at = 0.0  # look again for a node of last resort
        self.alarms: list[float] = []  # when something may look different

    @property
    def generation(self) -> int:
        """Return the number of the present life of the process group."""
        return self._membership.generation

    @property
    def running(self) -> bool:
        """Return whether the generation runs; otherwise its predecessor is being stopped, or its pods are gathered."""
        return self._membership.phase == "Run"

    @property
    def replaced(self) -> int:
        """Return the number of nodes that have been replaced."""
        return self._membership.replaced

    @property
    def _members(self) -> list[_Pod]:
        return [self._pods[member.pod_name] for member in self._membership.members]

    @property
    def _prepared_pods(self) -> dict[int, _Pod]:
        moves = self._membership.replacements
        return {move.replica: self._pods[move.pod_name] for move in moves if move.prepared}

    @property
    def waiting(self) -> bool:
        """Check whether a replica has no node."""
        return any(member.node is None for member in self._members)

    @property
    def lost_a_node(self) -> bool:
        return any(member.died_at is not None for member in self._members)

    @property
    def broken(self) -> bool:
        return bool(self._ends) or self.lost_a_node

    def wake(self, at: float) -> None:
        """Set an alarm: the operator looks at the job shortly after ``at``."""
        heapq.heappush(self.alarms, at + self._times.report_seconds)

    def strike(self, fault: StopFault, now: float) -> bool:
        """Let a fail-stop happen; True if it hits the job."""
        dies = fault.severity == "SEV1"
        if dies and not self._take_down(fault, now):
            return False
        hit = [replica for replica, member in enumerate(self._members) if member.node == fault.node]
        if not hit:
            return False
        if dies:
            self._members[hit[0]].died_at = now
            self.wake(now + self._times.lease_seconds)
            self.wake(now + NOT_READY_SECONDS)
        if self.running:
            self._break(hit[0], fault, now)
        return True

    def _take_down(self, fault: StopFault, now: float) -> bool:
        """Let a node die, with the pods that are prepared on it; False if it is dead already."""
        if fault.node in self._machines.broken:
            return False
        self._machines.fail(fault.node, now + fault.repair_seconds)
        self.wake(now + fault.repair_seconds)
        for prepared in self._prepared_pods.values():
            if prepared.node == fault.node:
                prepared.died_at = now
                self.wake(now)
        return True

    def _break(self, replica: int, fault: StopFault, now: float) -> None:
        """End the processes: the culprit's by its fault, its peers' soon after, when their collectives fail."""
        self.wake(now + _BREAK_SECONDS)
        first = replica * self._procs
        unseen = range(first, first + self._procs) if fault.severity == "SEV1" else range(0)
        if fault.severity == "SEV2":
            self._ends[first] = _End(_SIGKILL, None, now)
        elif fault.severity == "SEV3":
            self._ends[first] = _End(None, 1, now)
        for rank in range(len(self._members) * self._procs):
            if rank not in self._ends and rank not in unseen:
                self._ends[rank] = _End(None, 1, now + _BREAK_SECONDS)

    # -- what the recovery orders ------------------------------------------------------------------------------------

    def carry_out(self, commands: list[Command], now: float) -> None:
        """Carry out the recovery's commands."""
        before = self._seen_membership()
        after = apply_actions(before, commands, self._names, now)
        self._membership = after
        # The membership says which pods are wanted; the rest of this function makes the cluster follow.
        for node in set(after.excluded_nodes) - set(before.excluded_nodes):
            self._machines.leave(_number(node))
        for node in set(before.excluded_nodes) - set(after.excluded_nodes):
            self._machines.excluded.discard(_number(node))
        for move in after.replacements:
            if move.pod_name not in self._pods:
                self._make(move.pod_name, move.node, now)
        self._remove_pods()
        # The ranks of the old generation take a while to end.
        if after.generation > before.generation:
            self._ordered_at = now
            self._acknowledged_at = now + self._times.stop_seconds
            self.wake(self._acknowledged_at)

    def _seen_membership(self) -> Membership:
        """Return the membership with the members' nodes, and without the exclusions of nodes that are usable again."""
        machines, membership = self._machines, self._membership
        members = [
            replace(member, pod_uid=pod.name, node=_node(pod.node))
            for member, pod in zip(membership.members, self._members, strict=True)
        ]
        excluded = [entry for entry in membership.exclusions if _number(entry.node) in machines.excluded]
        return replace(membership, members=members, exclusions=excluded)

    def _make(self, name: str, stays_on: str, now: float) -> None:
        """Make a pod, on the node that it stays on or on a spare."""
        node = _number(stays_on) if stays_on else self._machines.take_spare()
        self._pods[name] = _Pod(name, node, now + self._times.pod_seconds, asked_at=now)
        self.wake(now + self._times.pod_seconds)

    def _remove_pods(self) -> None:
        """Remove the pods that the membership no longer names; a node that the job may use becomes a spare."""
        machines = self._machines
        kept = {member.pod_name for member in self._membership.members}
        kept |= {move.pod_name for move in self._membership.replacements if move.prepared}
        removed = [self._pods.pop(name) for name in list(self._pods) if name not in kept]
        for node in (pod.node for pod in removed):
            if node is not None and not (node in machines.broken or node in machines.excluded or node in self.nodes):
                machines.spares.append(node)

    # -- time --------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Give repaired nodes to the pods that wait for a node; begin the generation when its gang is complete."""
        self._machines.repair(now, self.nodes)
        self._place([*self._members, *self._prepared_pods.values()], now)
        if self.running or now < self._acknowledged_at:
            return
        members = self._members
        if all(pod.ready(now) for pod in members):
            moves = [move for move in self._membership.replacements if move.prepared]
            self._membership = replace(self._membership, phase="Run", since=now, replacements=moves)
            self._ends = {}
            self._machines.roles = [pod.node for pod in members if pod.node is not None]
            self.trains_at = now + self._times.start_seconds + self._times.restore_seconds
            self.wake(self.trains_at)

    def _place(self, pods: list[_Pod], now: float) -> None:
        """Give spares to the pods that await a node, in their order, as far as there are any."""
        for pod in pods:
            if pod.node is None and (node := self._machines.take_spare()) is not None:
                pod.node, pod.present_at = node, now + self._times.pod_seconds
                self.wake(pod.present_at)

    @property
    def nodes(self) -> set[int]:
        """Return the nodes that the job's pods are on."""
        return {pod.node for pod in self._pods.values() if pod.node is not None}

    def recall(
        self, state: RecoveryState, usable: Collection[int], replacement_seconds: float, now: float
    ) -> RecoveryState:
        """Give nodes that the job had left to replicas that wait for a spare, as ``departures.last_resort`` allows."""
        left = {_node(node): node for node in usable}
        for pod in self._members:
            if pod.node is None and left:
                name = left_nodes.last_resort(
                    state,
                    left,
                    stood_still_seconds=now - pod.asked_at,
                    replacement_seconds=replacement_seconds,
                )
                if name:
                    self._machines.take_back(left.pop(name))
                    state = left_nodes.back(state, name, now)
                    self._place([pod], now)
        if left and self.waiting and now >= self._recall_at:
            self._recall_at = now + _RECALL_SECONDS
            self.wake(self._recall_at)
        return state

    def swap_roles(self, nodes: list[int]) -> None:
        """Give role i the node that role ``nodes[i]`` has now (S3: inside the running pods)."""
        pods = self._members
        before = [pod.node for pod in pods]
        for pod, role in zip(pods, nodes, strict=True):
            pod.node = before[role]
        self._machines.roles = [pod.node for pod in pods if pod.node is not None]

    def begin_again(self, now: float, seconds: float) -> None:
        """Restart all processes after ``seconds``, as if the job were submitted again from outside (no Falcon)."""
        dead = [replica for replica, pod in enumerate(self._members) if pod.died_at is not None]
        self.carry_out([*(Recreate(replica, stay=False) for replica in dead), Restart()], now)
        self._acknowledged_at = now + seconds
        self.wake(self._acknowledged_at)

    # -- what the operator sees --------------------------------------------------------------------------------------

    def observe(self, now: float, agents: Agents | None, made: int, saved_at: float | None) -> Observation:
        """Return the job as its operator sees it now.

        ``made``: iterations of this generation, where no agent counts them. ``saved_at``: when the newest checkpoint
        was saved; None where the ranks do not say it.
        """
        machines = self._machines
        ready = sum(node not in machines.excluded for node in machines.spares)
        return Observation(
            now=now,
            generation=self.generation,
            running=self.running,
            running_seconds=now - self._membership.since if self.running else 0.0,
            members=[self._member(replica, pod, now) for replica, pod in enumerate(self._members)],
            ranks=self._ranks(agents, made),
            prepared={replica: _prepared(pod, now) for replica, pod in self._prepared_pods.items()},
            saved_at=saved_at,
            outlasting_at=saved_at,
            spares=Spares(
                pool="spares",
                available=ready > 0,
                message="" if ready else "the pool has no ready spare",
                ready=ready,
            ),
        )

    def _member(self, replica: int, pod: _Pod, now: float) -> MemberSeen:
        dead, present = pod.died_at, pod.node is not None and pod.present_at <= now
        return MemberSeen(
            replica=replica,
            pod_name=pod.name,
            pod_uid=pod.name if present else "",
            node=_node(pod.node),
            pod="Present" if present else "Awaited",
            alive=(dead is None or now < dead + self._times.lease_seconds) if present else None,
            node_health=NodeHealth(ready=dead is None or now < dead + NOT_READY_SECONDS, usable=dead is None),
            launcher=LauncherSeen(
                acknowledged=self.running or (dead is None and now >= self._acknowledged_at and present),
                unacknowledged_seconds=0.0 if self.running else now - self._ordered_at,
            ),
        )

    def _ranks(self, agents: Agents | None, made: int) -> list[RankSeen]:
        ranks = []
        for replica, pod in enumerate(self._members):
            for rank in range(replica * self._procs, (replica + 1) * self._procs):
                end = self._ends.get(rank)
                if end is not None:
                    ranks.append(
                        RankSeen(
                            rank=rank,
                            replica=replica,
                            process="Ended",
                            exit_code=end.exit_code,
                            signal=end.signal,
                            ended_at=end.at,
                            sent=_counted(rank, made),
                        )
                    )
                # A rank on a dead pod is silent: its end is reported by no launcher.
                elif not self.running or pod.died_at is not None:
                    ranks.append(RankSeen(rank=rank, replica=replica))
                else:
                    sent = _counted(rank, made) if agents is None else agents.sent(rank)
                    fresh = agents is not None and agents.fresh(rank)
                    ranks.append(RankSeen(rank=rank, replica=replica, process="Running", sent=sent, fresh=fresh))
        return ranks


def _counted(rank: int, iterations: int) -> RankSignals:
    """Return the signals of an agent that knows the number of iterations and nothing of their times."""
    return RankSignals(rank=rank, tracking="NoRing", iterations=iterations)


def _prepared(pod: _Pod, now: float) -> PreparedSeen:
    return PreparedSeen(
        pod_name=pod.name,
        waited_seconds=now - pod.asked_at,
        claimed_node=_node(pod.node),
        ready=pod.ready(now),
        lost=pod.died_at is not None,
        message="" if pod.node is not None else "no spare has been given yet",
    )


def _node(node: int | None) -> str:
    return "" if node is None else f"node-{node}"


def _number(node: str) -> int:
    return int(node.removeprefix("node-"))
