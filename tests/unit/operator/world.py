"""A small world for whole stories on a fake clock: an API server, a scheduler, nodes, launchers, agents, a bus.

It knows the wire formats and the API objects, and nothing of how the operator decides. Time moves only in ``tick``.
The operator can be made to crash at any of its mutating calls (``crash_at``): the call takes effect, the caller dies.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from falcon_core.recovery.membership import Exclusion
from falcon_core.topology.passes import ring_passes
from falcon_core.wire.check import CheckReport
from falcon_core.wire.check_links import LinkReport, LinksOrder, LinksReport
from falcon_core.wire.checkpoint import Held, Loaded
from falcon_core.wire.directory import DirectoryReport
from falcon_core.wire.imports import Imports
from falcon_core.wire.launch import LaunchRank, LaunchStandby, LaunchStatus
from falcon_core.wire.messages import CommSignals, Onset, Plan, RankSignals, Sight, Summary, ThrottleSignals, Work
from falcon_core.wire.microbatches import MicroShare
from falcon_core.wire.peers import CopiesReport, Peers
from falcon_core.wire.probe import ProbeReport
from falcon_operator.api import (
    TAINT_SPARE,
    ObjectMeta,
    SpareStatus,
    TrainingJob,
    TrainingJobSpec,
    TrainingJobStatus,
    WarmPool,
    WarmPoolRef,
    WarmPoolSpec,
    WarmPoolStatus,
)
from falcon_operator.intent.intent import Intent
from falcon_operator.intent.run import decode, read_run
from falcon_operator.ports import Manifest, NodeReport, Occupant, PodView, Received
from tests.unit.operator.fakes import START_UNIX, FakeBus, FakeKube
from tests.unit.operator.flows import Flows
from tests.unit.operator.paused import Paused, replica_of
from tests.unit.operator.voices import Voices

COMPUTE_SECONDS = 0.2
COMMUNICATION_SECONDS = 0.05
FIXED_SECONDS = 0.02  # of the computation, whatever a rank's share of micro-batches is
CHANGE_ITERATIONS = 2  # from an order to the change of shares
PLACE_SECONDS, BOOT_SECONDS, LAUNCH_SECONDS = 0.2, 1.0, 1.0
TTL_SECONDS = 3.0
PRICED = [{"type": "Ignore"}, {"type": "ReplaceNode", "overheadSeconds": 13}]  # unpriced, all work done counts as lost
replace = msgspec.structs.replace


class Crash(Exception):  # noqa: N818 - what it is
    """The death of the operator's process."""


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return 1000.0 + self.seconds

    def unix(self) -> float:
        return START_UNIX + self.seconds


class Node:
    def __init__(self, name: str, spare: bool) -> None:
        self.name, self.spare = name, spare
        self.slow = 1.0
        self.rate = 1.0  # of a measurement
        self.wrong = ""  # what its device computes wrongly
        self.bits = 10e9  # a second, of its links
        self.refuses = False  # connections of its peers, in the measurement of links
        self.throttled = 0.0
        self.dead = False  # everything on it is gone, and the API server does not know it
        self.ready = True
        self.taints = {TAINT_SPARE: "spares"} if spare else {}
        self.uid = f"uid-of-{name}"
        self.labels: dict[str, str] = {}
        self.cordoned = False
        self.reports: tuple[NodeReport, ...] = ()
        self.ready_changed = START_UNIX


class Pod:
    """A pod with its launcher and its agent."""

    def __init__(self, manifest: Manifest, uid: str, at: float) -> None:
        self.manifest, self.uid, self.created = manifest, uid, at
        self.name = str(manifest["metadata"]["name"])
        self.labels: dict[str, str] = manifest["metadata"]["labels"]
        self.node = ""
        self.placed_at = 0.0
        self.deleting_at: float | None = None
        self.disruption = ""
        self.exit_code: int | None = None  # of the trainer container
        self.agent_dead_at: float | None = None
        self.generation = 0
        self.dead_below = 0
        self.state: Literal["Idle", "Running", "Stopping", "Stopped", "Exited"] = "Idle"
        self.ranks: dict[int, LaunchRank] = {}
        self.run_at = 0.0
        self.signals: dict[int, RankSignals] = {}
        self.sequence = 0
        self.dead_seen_at: float | None = None
        self.check: CheckReport | None = None
        self.smoke: CheckReport | None = None

    @property
    def booted_at(self) -> float:
        return self.placed_at + BOOT_SECONDS if self.placed_at else float("inf")


class World:
    """The API server's contents, the bus, and the machines."""

    def __init__(self, *, replicas: int = 3, spares: int = 1, spec: dict[str, Any] | None = None) -> None:
        self.clock = Clock()
        self.nodes = {f"node-{chr(97 + index)}": Node(f"node-{chr(97 + index)}", False) for index in range(replicas)}
        self.nodes |= {f"spare-{index + 1}": Node(f"spare-{index + 1}", True) for index in range(spares)}
        self.pods: dict[str, Pod] = {}
        self.made: list[str] = []  # names of every pod ever created
        self.claims = 0
        self.burn_ins: dict[str, PodView] = {}
        self.tested: list[str] = []
        self.tenants: dict[str, list[Occupant]] = {}  # other workloads, by node
        self.events: list[tuple[str, str]] = []
        self.plans: list[Plan] = []
        self.plan: Plan | None = None
        self.bus_up_since: float | None = self.clock.monotonic() - 100.0
        self.bus_full = False
        self.unread: dict[str, str] = {}  # by pod uid
        self.received: dict[str, Received] = {}
        self.voices = Voices()
        self.gone_since: dict[str, float] = {}
        self.alive: set[str] = set()
        self.iterations = 0
        self.iterating_for = 0.0
        self.moved_unix = START_UNIX
        self.hanging = False
        self.retries: dict[int, int] = {}  # set-up calls tried again in place, by rank
        self.sights: dict[int, Sight] = {}  # what is not seen of them
        self.unseen: set[int] = set()  # ranks without a ring
        self.standby: LaunchStandby | None = None  # of each pod
        self.measured: list[tuple[int, str]] = []  # number and node of each measurement
        self.smoked: list[tuple[int, str]] = []  # likewise, smoke tests
        self.linked: list[tuple[int, str]] = []  # likewise, of its links
        self.cables: dict[frozenset[str], float] = {}  # bits a second between two nodes that differ from theirs
        self.tokens: dict[int, str] = {}  # of each order of links, by number
        self.mute: set[str] = set()  # nodes whose pods give no result
        self.unlinked: set[str] = set()  # nodes whose pods give none of their links
        self.skipped: dict[str, str] = {}  # kinds of work that the pods do not measure
        self.held: list[Held] = []  # what each pod says of checkpoints in memory
        self.loaded: list[Loaded] = []  # likewise, of what the ranks have begun from
        self.copies: CopiesReport | None = None  # what each says of copies
        self.peers: Peers | None = None  # what the agents were told of each other
        self.imports: Imports | None = None  # what standbys in pods without a replica import
        self.directory: DirectoryReport | None = None  # what each pod says of its folder in memory
        self.work: Work = "Fixed"  # what all ranks' calls show of it
        self.history: dict[int, list[tuple[int, int, int]]] = {}  # rank → (iteration, compute, wait) ns
        self.orders: list[tuple[int, list[int]]] = []  # of micro-batches: generation and shares
        self.paused = Paused()
        self.per_rank = 0  # micro-batches; 0: the script does not let them move
        self.hindrance = ""
        self.deaf = False  # the ranks do not take orders
        self.shares: list[int] = []  # in force; empty: even
        self.flows = Flows()
        self.slow_run = 0
        self.onset: Onset | None = None
        self.broken_at: float | None = None
        self.crash_at: int | None = None
        self.calls = 0
        self.applied: list[str] = []
        self.budget: int | None = None  # minAvailable of the job's PodDisruptionBudget
        self.job_deleted = False
        self.refuse_pods = ""
        self.refuse_taints = ""
        self._version = 1
        self._pending: tuple[int, list[int]] | None = None  # the iteration from which these shares hold
        body = {
            "replicas": replicas,
            "template": {"spec": {"containers": [{"name": "trainer", "image": "x", "command": ["python", "t.py"]}]}},
            **(spec or {}),
            "mitigation": {"strategies": PRICED, **(spec or {}).get("mitigation", {})},
        }
        self.job: TrainingJob | None = TrainingJob(
            metadata=ObjectMeta(name="gpt2", namespace="ml", uid="job-uid", resource_version="1", generation=1),
            spec=replace(msgspec.convert(body, TrainingJobSpec), warm_pool_ref=WarmPoolRef(name="spares")),
        )
        self.pool = WarmPool(
            metadata=ObjectMeta(name="spares", resource_version="1"),
            spec=WarmPoolSpec(node_selector={}, size=spares),
            status=WarmPoolStatus(
                spares=[SpareStatus(node=f"spare-{n + 1}", state="Ready", gemm_gflops="100") for n in range(spares)]
            ),
        )
        self.trainingrun: dict[str, Any] | None = None  # the TrainingRun's JSON
        self.kube = FakeKube(self)
        self.bus = FakeBus(self)

    # -- what a test reads -------------------------------------------------------------------------------------------

    @property
    def status(self) -> TrainingJobStatus:
        assert self.job is not None
        return self.job.status

    @property
    def intent(self) -> Intent:
        """Return the intent that the TrainingRun holds."""
        assert self.job is not None
        return decode(self.job, read_run(self.trainingrun).spec) if self.trainingrun is not None else Intent()

    @property
    def generation(self) -> int:
        return self.intent.membership.generation

    @property
    def exclusions(self) -> list[Exclusion]:
        return self.intent.membership.exclusions

    def pod_of(self, rank: int) -> Pod:
        return self.pods[self.intent.membership.members[rank].pod_name]

    def node_of(self, rank: int) -> Node:
        return self.nodes[self.pod_of(rank).node]

    # -- what a test does --------------------------------------------------------------------------------------------

    def edit_spec(self, **fields: Any) -> None:
        assert self.job is not None
        self._version += 1
        meta = replace(
            self.job.metadata, resource_version=str(self._version), generation=self.job.metadata.generation + 1
        )
        self.job = replace(self.job, metadata=meta, spec=replace(self.job.spec, **fields))

    def end_rank(
        self, rank: int, *, signal: int | None = None, exit_code: int | None = None, last_words: str = ""
    ) -> None:
        pod = self.pod_of(rank)
        self._end(pod, rank, signal=signal, exit_code=exit_code)
        pod.ranks[rank] = replace(pod.ranks[rank], last_words=last_words)
        if exit_code != 0:
            self.broken_at = self.clock.seconds + 0.05  # the peers' collectives break

    def kill_node(self, name: str) -> None:
        node = self.nodes[name]
        node.dead = True
        if any(pod.node == name and pod.state == "Running" for pod in self.pods.values()):
            self.broken_at = self.clock.seconds + 0.05

    def stop_bus(self) -> None:
        self.bus_up_since = None

    def start_bus(self) -> None:
        self.bus_up_since = self.clock.monotonic()

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self, seconds: float = 0.1) -> None:
        self.clock.seconds += seconds
        for pod in list(self.pods.values()):
            self._place(pod)
            self._remove(pod)
        for pod in self.pods.values():
            self._launch(pod)
            self._smoke(pod)
        self._break()
        self._train(seconds)
        for pod in self.pods.values():
            self._report(pod)

    def _place(self, pod: Pod) -> None:
        if pod.node or pod.deleting_at is not None or self.clock.seconds < pod.created + PLACE_SECONDS:
            return
        for node in self.nodes.values():
            if node.ready and not node.cordoned and self._fits(pod, node):
                pod.node, pod.placed_at = node.name, self.clock.seconds
                return

    def _fits(self, pod: Pod, node: Node) -> bool:
        spec = pod.manifest["spec"]
        if any(
            neighbour.node == node.name and neighbour.exit_code is None and neighbour is not pod
            for neighbour in self.pods.values()
        ):
            return False  # required anti-affinity
        tolerated = {toleration["key"] for toleration in spec.get("tolerations", [])}
        if set(node.taints) - tolerated:
            return False
        required = spec["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
        terms = required.get("nodeSelectorTerms", [{}])
        return any(all(_matches(node.name, field) for field in term.get("matchFields", [])) for term in terms)

    def _remove(self, pod: Pod) -> None:
        if pod.deleting_at is not None and not self._is_dead(pod) and self.clock.seconds >= pod.deleting_at + 0.5:
            del self.pods[pod.name]
            self.alive.discard(pod.uid)

    def _is_dead(self, pod: Pod) -> bool:
        return bool(pod.node) and self.nodes[pod.node].dead

    def _agent_lives(self, pod: Pod) -> bool:
        return (
            self.clock.seconds >= pod.booted_at
            and not self._is_dead(pod)
            and pod.agent_dead_at is None
            and pod.exit_code is None
            and pod.deleting_at is None
        )

    def _is_served(self, pod: Pod) -> bool:
        """Check whether a gateway serves the pod's agent: the bus is there, and the pod is announced."""
        return self.bus_up_since is not None and self._agent_lives(pod) and pod.uid in self.bus.announced

    def _launch(self, pod: Pod) -> None:
        """Let the launcher bring its pod to the plan that its agent has read."""
        plan = self.plan
        if plan is None or not self._is_served(pod):
            return
        member = next((plan_member for plan_member in plan.members if plan_member.pod_uid == pod.uid), None)
        phase = plan.phase if member is not None else "Stop"
        if plan.generation >= pod.generation:
            if phase == "Stop" and pod.dead_below < plan.generation:
                pod.generation, pod.dead_below, pod.ranks, pod.signals = plan.generation, plan.generation, {}, {}
                pod.state = "Stopped"
                pod.check = None
            elif phase == "Stop" and plan.check:
                self._check(pod, plan)
            elif phase == "Run" and pod.state not in ("Running", "Exited"):
                assert member is not None
                self._start(pod, plan, member.first_rank)
            elif phase == "Finish":
                pod.exit_code = plan.exit_code

    def _smoke(self, pod: Pod) -> None:
        """Let the launcher test its machine beside the start, once for each number."""
        number = self.plan.smoke if self.plan is not None and pod.generation == self.plan.generation else 0
        if not number or pod.node in self.mute or (pod.smoke is not None and pod.smoke.number == number):
            return
        node = self.nodes[pod.node]
        self.smoked.append((number, pod.node))
        problems = [node.wrong] if node.wrong else []
        pod.smoke = CheckReport(number, "", "falcon-launch", "1 × 2 CPUs", {"fp32": round(1e6 * node.rate)}, problems)

    def _start(self, pod: Pod, plan: Plan, first_rank: int) -> None:
        pod.generation, pod.dead_below, pod.state = plan.generation, plan.generation, "Running"
        pod.run_at = self.clock.seconds
        pod.ranks = {
            rank: LaunchRank(
                local_rank=rank - first_rank,
                rank=rank,
                pid=100 + rank,
                state="Running",
                started_unix_ns=int(self.clock.unix() * 1e9),
            )
            for rank in range(first_rank, first_rank + plan.procs_per_replica)
        }

    def _check(self, pod: Pod, plan: Plan) -> None:
        self._measure(pod, plan.check, plan.check_links)
        if plan.links is not None:
            self._link(pod, plan.links)

    def _measure(self, pod: Pod, number: int, links: bool) -> None:
        if pod.node in self.mute or (pod.check is not None and pod.check.number == number):
            return
        node = self.nodes[pod.node]
        rates = {"fp32": round(1e6 * node.rate), "copy": 5_000_000}
        self.measured.append((number, pod.node))
        port = LinksReport(40000 + len(self.measured)) if links else None
        problems = [node.wrong] if node.wrong else []
        pod.check = CheckReport(number, "", "torch", "1 × CPU", rates, problems, self.skipped, port)

    def _link(self, pod: Pod, order: LinksOrder) -> None:
        """Let a pod measure its links, once for each number, as it was ordered first."""
        report = pod.check
        if report is None or report.links is None or report.links.over or report.number != order.number:
            return
        assert self.tokens.setdefault(order.number, order.token) == order.token, "one token a round"
        if pod.node in self.unlinked:
            return
        self.linked.append((order.number, pod.node))
        nodes = {member.replica: member.node for member in self.plan.members} if self.plan is not None else {}
        own = next(replica for replica, node in nodes.items() if node == pod.node)
        peers = [peer for links in ring_passes([each[0] for each in order.ring]) for peer in _other(links, own)]
        done = [self._link_report(pod.node, nodes[peer], peer) for peer in peers]
        pod.check = replace(report, links=LinksReport(report.links.port, True, done))

    def _link_report(self, own: str, other: str, peer: int) -> LinkReport:
        ends = (self.nodes[own], self.nodes[other])
        if any(end.refuses for end in ends):
            return LinkReport(peer, why="10.0.0.9 port 40001: Connection refused")
        bits = self.cables.get(frozenset((own, other)), min(end.bits for end in ends))
        return LinkReport(peer, round(bits), 80, 100, 100, 950)

    def _end(self, pod: Pod, rank: int, *, signal: int | None = None, exit_code: int | None = None) -> None:
        pod.ranks[rank] = replace(
            pod.ranks[rank],
            state="Exited",
            signal=signal,
            exit_code=exit_code,
            ended_unix_ns=int(self.clock.unix() * 1e9),
        )
        if all(process.state == "Exited" for process in pod.ranks.values()):
            pod.state = "Exited"

    def _break(self) -> None:
        """Let the peers of a dead rank leave their collective with an exception."""
        if self.broken_at is None or self.clock.seconds < self.broken_at:
            return
        self.broken_at = None
        for pod in self.pods.values():
            if pod.state == "Running" and not self._is_dead(pod):
                for rank, process in list(pod.ranks.items()):
                    if process.state == "Running":
                        self._end(pod, rank, exit_code=1)

    def _train(self, seconds: float) -> None:
        plan = self.plan
        if plan is None or plan.phase != "Run":
            self.iterations, self.iterating_for, self.history, self.onset, self.slow_run = 0, 0.0, {}, None, 0
            self.shares, self._pending = [], None
            return
        group = [pod for pod in self.pods.values() if pod.generation == plan.generation and pod.state == "Running"]
        if self.hanging or not self._is_complete(group, plan.world_size):
            return
        if self.paused.stops(self.iterations, self.clock.seconds):
            return
        self.iterating_for += seconds
        talking = COMMUNICATION_SECONDS + self.flows.extra_seconds(self._nodes())
        while self.iterating_for >= (length := self._slowest(group) + talking):
            self.iterating_for -= length
            self.iterations += 1
            self.moved_unix = self.clock.unix()
            self._notice(length)
            for pod in group:
                own = COMPUTE_SECONDS * self.nodes[pod.node].slow  # as the agent reports it: with the even share
                for rank in pod.ranks:
                    wait = length - talking - self._computed(pod, rank)
                    self.history.setdefault(rank, []).append((int(length * 1e9), int(own * 1e9), int(wait * 1e9)))

            self._share(plan)

    def _nodes(self) -> dict[int, str]:
        """Return the node of each rank that runs."""
        return {rank: pod.node for pod in self.pods.values() for rank in pod.ranks}

    def _slowest(self, group: list[Pod]) -> float:
        return max(self._computed(pod, rank) for pod in group for rank in pod.ranks)

    def _computed(self, pod: Pod, rank: int) -> float:
        """Return for how long a rank computes in an iteration."""
        slow = self.nodes[pod.node].slow
        if not self.shares:
            return COMPUTE_SECONDS * slow
        return FIXED_SECONDS * slow + self.shares[rank] * self._micro(pod.node)

    def _micro(self, node: str) -> float:
        return (COMPUTE_SECONDS - FIXED_SECONDS) / self.per_rank * self.nodes[node].slow

    def _share(self, plan: Plan) -> None:
        """Let all ranks change their shares, two iterations after the order."""
        if self._pending is not None and self.iterations >= self._pending[0]:
            self.shares, self._pending = self._pending[1], None
        generation, wanted = self.orders[-1] if self.orders else (0, [])
        if generation == plan.generation and wanted != self.shares and self._pending is None and not self.deaf:
            self._pending = (self.iterations + CHANGE_ITERATIONS, wanted)

    def _is_complete(self, group: list[Pod], world_size: int) -> bool:
        """Check whether every rank lives and has had the time to start."""
        ranks = {rank for pod in group if not self._is_dead(pod) for rank in pod.ranks}
        return len(ranks) >= world_size and all(self.clock.seconds >= pod.run_at + LAUNCH_SECONDS for pod in group)

    def _notice(self, length: float) -> None:
        """Stand in for the agents' change-point detection: five slow iterations in a row, after ten healthy."""
        healthy = COMPUTE_SECONDS + COMMUNICATION_SECONDS
        self.slow_run = self.slow_run + 1 if length > 1.1 * healthy else 0
        if self.slow_run == 0:
            self.onset = None
        elif self.slow_run == 5 and self.iterations > 15:
            self.onset = Onset(
                iteration=self.iterations - 4,
                unix_ns=int((self.clock.unix() - 5 * length) * 1e9),
                reported_iteration=self.iterations,
                before_ns=int(healthy * 1e9),
                after_ns=int(length * 1e9),
            )
        elif self.onset is not None:
            self.onset = replace(self.onset, after_ns=int(length * 1e9))

    def _report(self, pod: Pod) -> None:
        if self.bus_up_since is None:
            return
        if not self._agent_lives(pod):
            if pod.uid in self.alive:
                pod.dead_seen_at = pod.dead_seen_at or self.clock.seconds
                if self.clock.seconds >= pod.dead_seen_at + TTL_SECONDS:
                    self.alive.discard(pod.uid)
                    self.gone_since[pod.uid] = self.clock.monotonic()
            return
        if not self._is_served(pod):
            return
        pod.dead_seen_at = None
        self.alive.add(pod.uid)
        self.gone_since.pop(pod.uid, None)
        pod.sequence += 1
        node = self.nodes[pod.node]
        running = self.plan is not None and pod.generation == self.plan.generation
        summary = Summary(
            pod_uid=pod.uid,
            sequence=pod.sequence,
            unix_ns=int(self.clock.unix() * 1e9),
            generation=pod.generation,
            launch=LaunchStatus(
                generation=pod.generation,
                dead_below=pod.dead_below,
                state=pod.state,
                standby=self._standby(pod),
                ranks=list(pod.ranks.values()),
            ),
            ranks=[self._signals(rank, node) for rank in pod.ranks if rank not in self.unseen] if running else [],
            throttle=ThrottleSignals(
                window_seconds=1.0, throttled_fraction=node.throttled, healthy_throttled_fraction=0.0
            ),
            checkpoints=self.held,
            loaded=self.loaded,
            copies=self.copies,
            directory=self.directory,
            check=pod.check if pod.state in ("Idle", "Stopped") else None,
            smoke=pod.smoke,
            imported=b"imports" if self.plan is not None and self.plan.imports_of == pod.uid else b"",
            probe=self._probed(pod) if running else None,
        )
        now = self.clock.monotonic()
        report = self.voices.report(summary, now, forgotten=pod.uid not in self.received)
        if report is not None:
            self.received[pod.uid] = Received(summary=report, at_seconds=now, gateway_unix=self.clock.unix())

    def _standby(self, pod: Pod) -> LaunchStandby | None:
        """Return what waits in the pod; in a pod without a replica nothing waits before it knows what to import."""
        waits = self.plan is not None and pod.uid in self.plan.standby_pods
        return None if waits and self.imports is None else self.standby

    def _probed(self, pod: Pod) -> ProbeReport | None:
        replica = replica_of(pod.ranks)
        return self.paused.report(replica, len(self._nodes()), self.iterations, self.clock.seconds)

    def _signals(self, rank: int, node: Node) -> RankSignals:
        values = self.history.get(rank, [])
        known = len(values) >= 3  # the period has been found
        newest = values[-16:] if known else []
        learned = values[:10] if len(values) >= 10 else []
        return RankSignals(
            rank=rank,
            tracking="Tracking" if known else "Undetermined",
            iterations=len(values) if known else 0,
            iteration_ns=[iteration for iteration, _, _ in newest],
            compute_ns=[compute for _, compute, _ in newest],
            wait_ns=[wait for _, _, wait in newest],
            healthy_iteration_ns=sorted(iteration for iteration, _, _ in learned)[5] if learned else None,
            healthy_compute_ns=sorted(compute for _, compute, _ in learned)[5] if learned else None,
            onset=self.onset,
            last_call_unix_ns=int(self.moved_unix * 1e9),
            hang_deadline_ns=int(5e9),
            cpu_fraction=0.0 if self.hanging else 0.8,
            run_delay_fraction=0.01,
            healthy_run_delay_fraction=0.01,
            comms=self._comms(rank, len(values)),
            sends=self.flows.sends(rank) if self.onset is not None else [],
            work=self.work,
            retries=self.retries.get(rank, 0),
            sight=self.sights.get(rank, "Full"),
            micro=self._said(rank, node) if known and self.per_rank else None,
        )

    def _said(self, rank: int, node: Node) -> MicroShare:
        share = self.shares[rank] if self.shares else self.per_rank
        micro_ns = None if self.hindrance else int(self._micro(node.name) * 1e9)
        return MicroShare(per_rank=self.per_rank, share=share, micro_ns=micro_ns, hindrance=self.hindrance)

    def _comms(self, rank: int, done: int) -> list[CommSignals]:
        if self.hanging:
            return [self._comm(rank, done)]
        return self.flows.comms(rank, self._nodes()) if self.onset is not None else []

    def _comm(self, rank: int, done: int) -> CommSignals:
        """Return the state of a hang: all ranks but the first have entered one call more than is finished."""
        size = len(self.history)
        return CommSignals(comm=1, size=size, place=rank, entered=done + (rank > 0), finished=done, op=1)

    def new_pod(self, manifest: Manifest, uid: str) -> Pod:
        return Pod(manifest, uid, self.clock.seconds)

    def mutate(self) -> None:
        """Count a mutating call; the call with the number ``crash_at`` is the operator's last."""
        self.calls += 1
        if self.crash_at == self.calls:
            raise Crash


def _other(links: list[tuple[int, int]], own: int) -> list[int]:
    return [second if own == first else first for first, second in links if own in (first, second)]


def _matches(node: str, field: dict[str, Any]) -> bool:
    return bool((node in field["values"]) == (field["operator"] == "In"))
