"""What is there in the small world: the API server's contents, the bus, and the machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from falcon_core.recovery.model.membership import Exclusion
from falcon_core.wire.launcher.imports import Imports
from falcon_core.wire.launcher.launch import LaunchRank, LaunchStandby
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.reporting.anomalies import Anomaly
from falcon_core.wire.reporting.groups import GroupReport
from falcon_core.wire.reporting.messages import Onset, Plan, RankSignals, Sight, Work
from falcon_core.wire.reporting.verification import RankResults
from falcon_core.wire.saves.checkpoint import Held, Loaded
from falcon_core.wire.saves.directory import DirectoryReport
from falcon_core.wire.saves.peers import CopiesReport, Peers
from falcon_operator.api.common import TAINT_SPARE, ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec, TrainingJobStatus, WarmPoolRef
from falcon_operator.api.warmpool import SpareStatus, WarmPool, WarmPoolSpec, WarmPoolStatus
from falcon_operator.base.ports import Manifest, NamespaceRules, NodeReport, Occupant, OtherJobs, PodView, Received
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.run import decode, read_run
from tests.world.agents import Voices
from tests.world.fakes import START_UNIX, FakeBus, FakeKube
from tests.world.flows import Flows
from tests.world.probe import Paused

COMPUTE_SECONDS = 0.2
COMMUNICATION_SECONDS = 0.05
FIXED_SECONDS = 0.02  # of the computation, whatever a rank's share of micro-batches is
CHANGE_ITERATIONS = 2  # from an order to the change of shares
PLACE_SECONDS, BOOT_SECONDS, LAUNCH_SECONDS = 0.2, 1.0, 1.0
TTL_SECONDS = 3.0
PRICED = [{"type": "Ignore"}, {"type": "ReplaceNode", "overheadSeconds": 13}]  # unpriced, all work done counts as lost
replace = msgspec.structs.replace


class Crash(BaseException):
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
        self.odd: Callable[[float], list[Anomaly]] = lambda _seconds: []  # what its pod's agent finds odd at that time
        self.results: list[RankResults] = []  # hashes of all-reduces that its pod's agent reports
        self.dead = False  # everything on it is gone, and the API server does not know it
        self.ready = True
        self.taints = {TAINT_SPARE: "spares"} if spare else {}
        self.ends: set[str] = set()  # keys of taints with the effect NoExecute; the others have NoSchedule
        self.uid = f"uid-of-{name}"
        self.labels: dict[str, str] = {}
        self.cordoned = False
        self.reports: tuple[NodeReport, ...] = ()
        self.ready_changed = START_UNIX - 3600.0
        self.stuck: dict[str, Any] | None = None  # pods do not start here: what their kubelet says (fields of PodView)
        self.lacks = ""  # ranks end here soon after their start, with these words
        self.lacks_after_seconds = 0.5
        self.ends_pods: tuple[int, dict[str, Any]] | None = None  # as soon as they would begin: exit code, and words


class Pod:
    """A pod with its launcher and its agent."""

    def __init__(self, manifest: Manifest, uid: str, at: float) -> None:
        self.manifest, self.uid, self.created = manifest, uid, at
        self.name = str(manifest["metadata"]["name"])
        self.labels: dict[str, str] = manifest["metadata"]["labels"]
        self.node = ""
        self.placed_at = 0.0
        self.gates: tuple[str, ...] = ()  # a queue keeps the scheduler from looking at it
        self.stuck = False  # its node does not start it
        self.deleting_at: float | None = None
        self.disruption = ""
        self.exit_code: int | None = None  # of the trainer container
        self.said: dict[str, Any] = {}  # what its kubelet says otherwise: fields of PodView
        self.agent_dead_at: float | None = None
        self.signalled_at: float | None = None  # SIGTERM to its launcher
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
        return self.placed_at + BOOT_SECONDS if self.placed_at and not self.stuck else float("inf")


class WorldState:
    """The state of the small world, and what a test reads of it."""

    kube: FakeKube
    bus: FakeBus

    def __init__(self, *, replicas: int = 3, spares: int = 1, spec: dict[str, Any] | None = None) -> None:
        self.clock = Clock()
        self.nodes = {f"node-{chr(97 + index)}": Node(f"node-{chr(97 + index)}", False) for index in range(replicas)}
        self.nodes |= {f"spare-{index + 1}": Node(f"spare-{index + 1}", True) for index in range(spares)}
        self.gates: tuple[str, ...] = ()  # of pods that are made from now on
        self.pods: dict[str, Pod] = {}
        self.made: list[str] = []  # names of every pod ever created
        self.claims = 0
        self.burn_ins: dict[str, PodView] = {}
        self.tested: list[str] = []
        self.busy_host = 1.0  # how many times slower all tests are now
        self.tenants: dict[str, list[Occupant]] = {}  # other workloads, by node
        self.events: list[tuple[str, str]] = []
        self.plans: list[Plan] = []
        self.plan: Plan | None = None
        self.bus_up_since: float | None = self.clock.monotonic() - 100.0
        self.bus_full = False
        self.other_jobs = OtherJobs()
        self.unread: dict[str, str] = {}  # by pod uid
        self.received: dict[str, Received] = {}
        self.voices = Voices()
        self.gone_since: dict[str, float] = {}
        self.alive: set[str] = set()
        self.stages = 1  # of a pipeline without overlap
        self.tensor = 1  # ranks of a stage that wait for each other
        self.exchange: dict[int, float] = {}  # seconds by which an iteration is longer, by the number of ranks
        self.iterations = 0
        self.iterating_for = 0.0
        self.moved_unix = START_UNIX
        self.hanging = False
        self.living = False  # ranks train on without lost ones, which join them again
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
        self.peers: Peers | None = None  # what the agents know of each other
        self.imports: Imports | None = None  # what standbys in pods without a replica import
        self.groups: dict[int, GroupReport] = {}  # what the launcher of each replica says of the ranks' group
        self.directory: DirectoryReport | None = None  # what each pod says of its folder in memory
        self.work: Work = "Fixed"  # what all ranks' calls show of it
        self.history: dict[int, list[tuple[int, int, int]]] = {}  # rank → (iteration, compute, wait) ns
        self.orders: list[tuple[int, list[int]]] = []  # of micro-batches: generation and shares
        self.paused = Paused()
        self.heavy: dict[int, float] = {}  # × the work of the others, by rank: it follows its rank to any node
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
        self.has_budget = True  # an earlier release has made one for the job
        self.job_deleted = False
        self.refuse_pods = ""
        self.namespace_rules = NamespaceRules()
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

    def _nodes(self) -> dict[int, str]:
        """Return the node of each rank that runs."""
        return {rank: pod.node for pod in self.pods.values() for rank in pod.ranks}
