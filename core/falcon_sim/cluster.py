"""Pods, launchers, leases and generations of the simulated job, and what the operator sees of them.

Carries out the recovery's actions as the operator would, with the cluster's own times, and builds the Observation from
what is visible: exits, leases, node conditions, reports.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

import msgspec

from falcon_core.recovery import departures
from falcon_core.recovery.observation import (
    Abandon,
    Action,
    MemberSeen,
    Observation,
    Prepare,
    PreparedSeen,
    RankSeen,
    Recreate,
    Replace,
    Restart,
    Spares,
    Switch,
)
from falcon_core.recovery.state import RecoveryState
from falcon_sim.agents import Agents
from falcon_sim.machines import Machines
from falcon_sim.scenario import Scenario, StopFault

NOT_READY_SECONDS = 40.0  # Kubernetes' node monitor grace period
_RECALL_SECONDS = 30.0  # between two looks for a node of last resort
_SIGKILL = 9
_BREAK_SECONDS = 0.05  # after which the peers' collectives fail
replace = msgspec.structs.replace


class _Member(msgspec.Struct):
    """One replica's pod."""

    pods: int  # made so far; names derive from it
    node: int | None  # None: awaits a spare
    present_at: float = 0.0
    died_at: float | None = None  # with its node
    asked_at: float = 0.0  # for a node

    def ready(self, now: float) -> bool:
        """Tell whether its pod runs on a node that lives."""
        return self.node is not None and self.died_at is None and self.present_at <= now


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
        self._members = [_Member(1, node) for node in machines.roles]
        self._prepared_members: dict[int, _Member] = {}  # by replica
        self._ends: dict[int, _End] = {}
        self.generation = 1
        self.running = True
        self.running_since = 0.0
        self._ordered_at = 0.0  # to stop
        self._acknowledged_at = 0.0
        self.trains_at = scenario.cluster.start_seconds  # if nothing happens before
        self._recall_at = 0.0  # look again for a node of last resort
        self.replaced = 0
        self.alarms: list[float] = []  # when something may look different

    @property
    def waiting(self) -> bool:
        """Tell whether a replica has no node."""
        return any(member.node is None for member in self._members)

    @property
    def lost_a_node(self) -> bool:
        return any(member.died_at is not None for member in self._members)

    @property
    def broken(self) -> bool:
        return bool(self._ends) or self.lost_a_node

    def wake(self, at: float) -> None:
        """Look at the job shortly after ``at``."""
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
        for prepared in self._prepared_members.values():
            if prepared.node == fault.node:
                prepared.died_at = now
                self.wake(now)
        return True

    def _break(self, replica: int, fault: StopFault, now: float) -> None:
        """End the processes: the culprit's by what befell it, its peers' soon after, as their collectives fail."""
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

    def carry_out(self, actions: list[Action], now: float) -> None:
        """Do what the recovery decided; a new generation if the actions ask for one."""
        bump = False
        for action in actions:
            match action:
                case Restart():
                    bump = True
                case Recreate(replica=replica, stay=stay):
                    self._recreate(replica, now, stay=stay)
                    bump = True
                case Replace(replica=replica):
                    self._leave(replica)
                    self._members[replica] = self._new_pod(replica, now)
                    self.replaced += 1
                    bump = True
                case Prepare(replica=replica):
                    node = self._members[replica].node
                    if node is not None:
                        self._machines.leave(node)
                    self._prepared_members[replica] = self._new_pod(replica, now)
                case Switch(replica=replica):
                    self._members[replica] = self._prepared_members.pop(replica)
                    self.replaced += 1
                    bump = True
                case Abandon(replica=replica):
                    self._abandon(replica)
        if bump:
            self._next_generation(now)

    def _leave(self, replica: int) -> None:
        node = self._members[replica].node
        if node is not None:
            self._machines.leave(node)

    def _recreate(self, replica: int, now: float, *, stay: bool) -> None:
        member = self._members[replica]
        if stay and member.node is not None:
            self._members[replica] = _Member(member.pods + 1, member.node, now + self._times.pod_seconds)
            self.wake(now + self._times.pod_seconds)
            return
        self._leave(replica)
        self._members[replica] = self._new_pod(replica, now)

    def _new_pod(self, replica: int, now: float) -> _Member:
        pods = self._members[replica].pods + 1
        node = self._machines.take_spare()
        self.wake(now + self._times.pod_seconds)
        return _Member(pods, node, now + self._times.pod_seconds, asked_at=now)

    def _abandon(self, replica: int) -> None:
        prepared = self._prepared_members.pop(replica, None)
        if prepared is not None and prepared.node is not None and prepared.node not in self._machines.broken:
            self._machines.spares.append(prepared.node)
        node = self._members[replica].node
        if node is not None:
            self._machines.excluded.discard(node)

    def _next_generation(self, now: float) -> None:
        if not self.running:
            return
        self.running = False
        self.generation += 1
        self._ordered_at = now
        self._acknowledged_at = now + self._times.stop_seconds
        self.wake(self._acknowledged_at)

    # -- time --------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Give repaired nodes to who waits for one; begin the generation when its gang is complete."""
        self._machines.repair(now, self.nodes)
        for replica, member in enumerate(self._members):
            if member.node is None:
                self._members[replica] = self._placed(member, now)
        for replica, prepared in self._prepared_members.items():
            if prepared.node is None:
                self._prepared_members[replica] = self._placed(prepared, now)
        if self.running or now < self._acknowledged_at:
            return
        if all(member.ready(now) for member in self._members):
            self.running = True
            self.running_since = now
            self._ends = {}
            self._machines.roles = [member.node for member in self._members if member.node is not None]
            self.trains_at = now + self._times.start_seconds + self._times.restore_seconds
            self.wake(self.trains_at)

    def _placed(self, member: _Member, now: float) -> _Member:
        node = self._machines.take_spare()
        if node is None:
            return member
        self.wake(now + self._times.pod_seconds)
        return replace(member, node=node, present_at=now + self._times.pod_seconds)

    @property
    def nodes(self) -> set[int]:
        """Return the nodes that its pods are on."""
        return {member.node for member in [*self._members, *self._prepared_members.values()] if member.node is not None}

    def recall(
        self, state: RecoveryState, usable: Collection[int], replacement_seconds: float, now: float
    ) -> RecoveryState:
        """Give a replica that has waited for a spare for long enough a slow node that the job had left."""
        left = {_node(node): node for node in usable}
        for replica, member in enumerate(self._members):
            if member.node is None and left:
                name = departures.last_resort(
                    state,
                    left,
                    stood_still_seconds=now - member.asked_at,
                    replacement_seconds=replacement_seconds,
                )
                if name:
                    self._machines.take_back(left.pop(name))
                    state = departures.back(state, name, now)
                    self._members[replica] = self._placed(member, now)
        if left and self.waiting and now >= self._recall_at:
            self._recall_at = now + _RECALL_SECONDS
            self.wake(self._recall_at)
        return state

    def swap_roles(self, nodes: list[int]) -> None:
        """Give role i the node that role ``nodes[i]`` has now (S3: inside the running pods)."""
        before = [member.node for member in self._members]
        for replica, role in enumerate(nodes):
            self._members[replica].node = before[role]
        self._machines.roles = [member.node for member in self._members if member.node is not None]

    def begin_again(self, now: float, seconds: float) -> None:
        """Make all pods anew after ``seconds``, as somebody from outside would submit the job again (no Falcon)."""
        for replica, member in enumerate(self._members):
            if member.died_at is not None:
                self._members[replica] = self._new_pod(replica, now)
        if self.running:
            self._next_generation(now)
        self._acknowledged_at = now + seconds
        self.wake(self._acknowledged_at)

    # -- what the operator sees --------------------------------------------------------------------------------------

    def observe(self, now: float, agents: Agents | None, counts: tuple[int, ...], made: int) -> Observation:
        """Return the job as its operator sees it now.

        ``made``: iterations of this generation, where no agent counts them.
        """
        machines = self._machines
        ready = sum(node not in machines.excluded for node in machines.spares)
        return Observation(
            now=now,
            generation=self.generation,
            running=self.running,
            running_seconds=now - self.running_since if self.running else 0.0,
            members=[self._member(replica, now) for replica in range(len(self._members))],
            ranks=self._ranks(agents, counts, made),
            prepared={
                replica: self._prepared(replica, member, now) for replica, member in self._prepared_members.items()
            },
            spares=Spares(
                pool="spares",
                available=ready > 0,
                message="" if ready else "the pool has no ready spare",
                ready=ready,
            ),
        )

    def _member(self, replica: int, now: float) -> MemberSeen:
        member, times = self._members[replica], self._times
        dead = member.died_at
        present = member.node is not None and member.present_at <= now
        name = _name(replica, member.pods)
        return MemberSeen(
            replica=replica,
            pod_name=name,
            pod_uid=name if present else "",
            node=_node(member.node),
            pod="Present" if present else "Awaited",
            alive=(dead is None or now < dead + times.lease_seconds) if present else None,
            node_ready=dead is None or now < dead + NOT_READY_SECONDS,
            node_usable=dead is None,
            acknowledged=self.running or (dead is None and now >= self._acknowledged_at and present),
            unacknowledged_seconds=0.0 if self.running else now - self._ordered_at,
        )

    def _ranks(self, agents: Agents | None, counts: tuple[int, ...], made: int) -> list[RankSeen]:
        ranks = []
        for replica, member in enumerate(self._members):
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
                            iterations=made,
                        )
                    )
                elif not self.running or member.died_at is not None:
                    ranks.append(RankSeen(rank=rank, replica=replica))
                elif agents is None:
                    ranks.append(RankSeen(rank=rank, replica=replica, process="Running", iterations=made))
                else:
                    ranks.append(RankSeen(rank=rank, replica=replica, process="Running", **agents.seen(rank, counts)))
        return ranks

    def _prepared(self, replica: int, prepared: _Member, now: float) -> PreparedSeen:
        return PreparedSeen(
            pod_name=_name(replica, prepared.pods),
            waited_seconds=now - prepared.asked_at,
            claimed_node=_node(prepared.node),
            ready=prepared.ready(now),
            lost=prepared.died_at is not None,
            message="" if prepared.node is not None else "no spare has been given yet",
        )


def _name(replica: int, pods: int) -> str:
    return f"job-{replica}-{pods}"


def _node(node: int | None) -> str:
    return "" if node is None else f"node-{node}"
