"""Decode the scenario file strictly: one YAML document; unknown and impossible entries are refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import yaml

from falcon_core.recovery.strategies import adjust_microbatches, ignore, replace_node, swap_for_link
from falcon_core.recovery.views import StrategyName
from falcon_sim.job.pipeline import Schedule, ScheduleError, interleaved, one_f_one_b


class ScenarioError(ValueError):
    """The scenario cannot run; the message names the field."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base: unknown keys are refused."""


class Distribution(_Part, frozen=True, kw_only=True):
    """A random number; exactly one of the fields."""

    constant: float | None = None
    uniform: tuple[float, float] | None = None  # from, to
    exponential: float | None = None  # mean
    lognormal: tuple[float, float] | None = None  # median, sigma of the logarithm

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a value."""
        if self.constant is not None:
            return self.constant
        if self.uniform is not None:
            return float(rng.uniform(*self.uniform))
        if self.exponential is not None:
            return float(rng.exponential(self.exponential))
        assert self.lognormal is not None  # checked when the scenario was read
        return float(self.lognormal[0] * math.exp(self.lognormal[1] * rng.standard_normal()))


class Degrees(_Part, frozen=True, kw_only=True):
    """Parallelism; ``expert`` divides ``data``. Ranks: tensor fastest, then data, pipeline slowest (Megatron)."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    @property
    def world(self) -> int:
        return self.tensor * self.pipeline * self.data


class Job(_Part, frozen=True, kw_only=True):
    """A training job. Seconds are those of a healthy machine; lists go by stage."""

    name: str = "job"
    parallelism: Degrees = Degrees()
    procs_per_node: int = 8
    microbatches: int = 8  # of one replica in one iteration, when shared evenly
    schedule: Literal["1F1B", "Interleaved"] = "1F1B"
    chunks: int = 1  # of a stage, for Interleaved
    forward_seconds: float | list[float] = 0.05  # one micro-batch through one stage, computing alone
    backward_seconds: float | list[float] = 0.1
    tensor_seconds: float = 0.0  # tensor-parallel all-reduce, in each pass
    expert_seconds: float = 0.0  # all-to-all of the experts, in each pass
    transfer_seconds: float = 0.0  # from stage to stage, one micro-batch
    reduce_seconds: float = 0.05  # gradients of a stage over the replicas
    optimizer_seconds: float = 0.02  # and all that follows
    calls: Literal["Blocking", "Enqueued"] = "Blocking"  # return when done (Gloo), or when enqueued (NCCL)
    buckets: int = 1  # calls in which a stage's gradients are reduced
    sizes: Literal["Fixed", "ByWork"] = "Fixed"  # payloads and transfers of the calls in passes grow with the work
    noise: float = 0.01  # relative, of a rank's computation from iteration to iteration
    common_noise: float = 0.0  # the same of all ranks together
    work_noise: float = 0.0  # of a micro-batch's work (its tokens), which all its passes on all stages share
    pass_noise: float = 0.0  # of each pass of each rank
    transfer_noise: float = 0.05
    spikes: float = 0.0  # share of iterations in which some rank takes spike_factor times as long
    spike_factor: float = 2.0
    checkpoint_every_iterations: int = 100
    reports_checkpoints: bool = False  # the ranks say when they have saved, as with ``falcon_torch.Checkpoint``
    saves_on_demand: bool = False  # and save when Falcon asks: a planned restart does no work again
    flops_per_iteration: float | None = None
    peak_flops_per_worker: float | None = None
    weight: float = 1.0


class SlowFault(_Part, frozen=True, kw_only=True):
    """A fail-slow: from ``at_seconds`` for ``duration_seconds``, something takes ``factor`` times as long."""

    at_seconds: float
    duration_seconds: float
    factor: float
    kind: Literal["Computation", "Communication"] = "Computation"
    node: int
    proc: int | None = None  # Computation: one process of the node; None: all of them
    peer: int | None = None  # Communication: the link between two nodes; None: all links of the node


class StopFault(_Part, frozen=True, kw_only=True):
    """A fail-stop. SEV1: the node is gone; SEV2: a process dies; SEV3: a call fails and its process with it."""

    at_seconds: float
    severity: Literal["SEV1", "SEV2", "SEV3"]
    node: int
    repair_seconds: float = 86_400.0  # SEV1: until the node is back, as a spare


class RandomSlow(_Part, frozen=True, kw_only=True):
    """Fail-slows as a Poisson process over the job's nodes."""

    node_hours_between: float
    kind: Literal["Computation", "Communication"] = "Computation"
    factor: Distribution
    duration_seconds: Distribution
    whole_node: bool = False


class RandomStop(_Part, frozen=True, kw_only=True):
    """Fail-stops as a Poisson process over the job's nodes."""

    node_hours_between: float
    severity: Literal["SEV1", "SEV2", "SEV3"]
    repair_seconds: Distribution = Distribution(constant=86_400.0)


class Faults(_Part, frozen=True, kw_only=True):
    """The faults, by trace and by distribution."""

    slow: list[SlowFault] = []
    stop: list[StopFault] = []
    random_slow: list[RandomSlow] = []
    random_stop: list[RandomStop] = []
    # What the ``node`` of a fault is. Roles: a place in the job; the node that has it when the fault begins is struck.
    # So runs that leave different nodes meet the same faults, and can be compared one by one.
    strike: Literal["Nodes", "Roles"] = "Nodes"


class Run(_Part, frozen=True, kw_only=True):
    """The length of the run; the limit that is reached first ends it."""

    iterations: int | None = None
    seconds: float | None = None


class Cluster(_Part, frozen=True, kw_only=True):
    """The surroundings of the job; times of the machinery, seconds."""

    spares: int = 1
    stop_seconds: float = 2.0  # until every process of a generation is gone
    start_seconds: float = 20.0  # processes start, rendezvous, warm up
    restore_seconds: float = 10.0  # load the checkpoint
    pod_seconds: float = 15.0  # a new pod on a spare is ready
    lease_seconds: float = 3.0
    report_seconds: float = 1.0  # agents report, the operator looks


class Watch(_Part, frozen=True, kw_only=True):
    """Thresholds of the agents and the operator; as ``spec.detection``."""

    verify_percent: int = 10
    median_percent: int = 150
    consecutive_iterations: int = 5
    look_iterations: int = 1  # between two looks, at least (and at least a second): more is faster, and later
    delay_seconds: float = 0.0  # until the operator first learns of an event, beyond the signals' own delay
    sample_every: int = 20  # job.calls: Enqueued: iterations of which one is timed on the device
    profiles: bool = True  # likewise: every iteration of a rank is timed for a while once the rank is slow
    sentinels: int = 0  # ranks whose rings are read all the time; the others' when something is up. 0: all


class Strategy(_Part, frozen=True, kw_only=True):
    """A rung of the ladder and what it costs; without a figure, core's own default."""

    type: StrategyName
    overhead_seconds: float | None = None


LADDER = (
    Strategy(type=ignore.TYPE),
    Strategy(type=adjust_microbatches.TYPE, overhead_seconds=5.0),
    Strategy(type=swap_for_link.TYPE, overhead_seconds=45.0),
    Strategy(type=replace_node.TYPE),
)


class Published(_Part, frozen=True, kw_only=True):
    """Decide as FALCON does (algorithm 1): each event is validated under a pause, then its cause's rungs in turn."""

    profiled_iterations: int = 3  # after the onset, before the pause; FALCON gives no figure for either
    validation_seconds: float = 3.0


class Policy(_Part, frozen=True, kw_only=True):
    """The actions that Falcon may take. ``None``: no agent runs; an outsider notices a dead job and restarts it."""

    falcon: Literal["None", "FailStop", "All"] = "All"
    strategies: tuple[Strategy, ...] = LADDER
    published: Published | None = None  # decide as FALCON does instead: to compare
    pause_budget: float = 0.01  # share of the time for which all ranks may stand still to be measured
    restarts: int = 3
    window_seconds: float = 3600.0
    checkpoint_interval_seconds: float | None = None  # as the job's owner declares it; None: not declared
    unwatched_notice_seconds: float = 1800.0  # without Falcon: the collective's time-out
    unwatched_restart_seconds: float = 600.0  # and a person or a script who starts the job again
    unwatched_repair_seconds: float = 3600.0  # and who finds a node in place of a dead one


class Scenario(_Part, frozen=True, kw_only=True):
    """The whole file."""

    name: str
    seed: int = 0
    run: Run = Run(iterations=1000)
    job: Job = Job()
    cluster: Cluster = Cluster()
    detection: Watch = Watch()
    mitigation: Policy = Policy()
    faults: Faults = Faults()
    fast_forward: bool = False  # jump over stretches in which nothing is wrong (long runs): no false alarms are sought

    @property
    def nodes(self) -> int:
        return self.job.parallelism.world // self.job.procs_per_node


def load(path: Path) -> Scenario:
    """Read and check a scenario. Raises ScenarioError, which names the field, or OSError."""
    return parse(path.read_text())


def parse(text: str) -> Scenario:
    """Read and check a scenario from a string."""
    try:
        return checked(msgspec.convert(yaml.safe_load(text), Scenario))
    except yaml.YAMLError as error:
        raise ScenarioError(f"not YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise ScenarioError(str(error)) from error


def by_stage(job: Job, value: float | list[float]) -> list[float]:
    """Return a time for each stage."""
    return list(value) if isinstance(value, list) else [value] * job.parallelism.pipeline


def schedule_of(job: Job, microbatches: int) -> Schedule:
    """Return the job's schedule for so many micro-batches; raises ScheduleError."""
    stages = job.parallelism.pipeline
    if job.schedule == "Interleaved":
        return interleaved(stages, job.chunks, microbatches)
    return one_f_one_b(stages, microbatches)


def checked(scenario: Scenario) -> Scenario:
    """Return the scenario if it can run. Raises ScenarioError."""
    _check_job(scenario.job)
    run = scenario.run
    if run.iterations is None and run.seconds is None:
        raise ScenarioError("run: give iterations or seconds")
    _positive("run.iterations", run.iterations)
    _positive("run.seconds", run.seconds)
    _check_watch(scenario.detection, scenario.job.parallelism.world)
    _positive("mitigation.checkpoint_interval_seconds", scenario.mitigation.checkpoint_interval_seconds)
    for name in scenario.cluster.__struct_fields__:
        if getattr(scenario.cluster, name) < 0:
            raise ScenarioError(f"cluster.{name} is negative")
    _check_faults(scenario)
    return scenario


def _positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ScenarioError(f"{name} is {value}, and must be positive")


def _check_watch(watch: Watch, world: int) -> None:
    if (
        min(watch.consecutive_iterations, watch.look_iterations) < 1
        or watch.verify_percent < 1
        or watch.median_percent <= 100
    ):
        raise ScenarioError("detection: the thresholds must be positive, and median_percent above 100")
    if watch.sample_every < 1 or not 0 <= watch.delay_seconds < math.inf:
        raise ScenarioError("detection: sample_every must be at least 1, delay_seconds not negative")
    if not 0 <= watch.sentinels <= world:
        raise ScenarioError(f"detection.sentinels is {watch.sentinels} of {world} ranks")


def _check_job(job: Job) -> None:
    degrees = job.parallelism
    for name in degrees.__struct_fields__:
        if getattr(degrees, name) < 1:
            raise ScenarioError(f"job.parallelism.{name} is {getattr(degrees, name)}, and must be at least 1")
    if degrees.data % degrees.expert:
        raise ScenarioError(f"job.parallelism.expert {degrees.expert} does not divide data {degrees.data}")
    if job.procs_per_node < 1 or degrees.world % job.procs_per_node:
        raise ScenarioError(f"job.procs_per_node {job.procs_per_node} does not divide the world of {degrees.world}")
    if job.microbatches < 1:
        raise ScenarioError(f"job.microbatches is {job.microbatches}, and must be at least 1")
    if job.buckets < 1:
        raise ScenarioError(f"job.buckets is {job.buckets}, and must be at least 1")
    for name in ("noise", "common_noise", "work_noise", "pass_noise"):
        if not 0 <= getattr(job, name) < math.inf:
            raise ScenarioError(f"job.{name} is {getattr(job, name)}, and must not be negative")
    if job.chunks < 1 or (job.chunks > 1 and job.schedule != "Interleaved"):
        raise ScenarioError(f"job.chunks {job.chunks} needs schedule: Interleaved")
    _check_times(job)
    try:
        schedule_of(job, job.microbatches)
    except ScheduleError as error:
        raise ScenarioError(f"job.microbatches: {error}") from error


def _check_times(job: Job) -> None:
    stages = job.parallelism.pipeline
    for name in ("forward_seconds", "backward_seconds"):
        times = by_stage(job, getattr(job, name))
        if len(times) != stages:
            raise ScenarioError(f"job.{name} has {len(times)} stages of {stages}")
        for seconds in times:
            _positive(f"job.{name}", seconds)
    for name in ("tensor_seconds", "expert_seconds", "transfer_seconds", "reduce_seconds", "optimizer_seconds"):
        if not 0 <= getattr(job, name) < math.inf:
            raise ScenarioError(f"job.{name} is negative or infinite")


def _check_faults(scenario: Scenario) -> None:
    faults = scenario.faults
    for place, slow in enumerate(faults.slow):
        _check_slow(f"faults.slow[{place}]", slow, scenario)
    for place, stop in enumerate(faults.stop):
        _check_node(f"faults.stop[{place}].node", stop.node, scenario)
    for place, drawn_slow in enumerate(faults.random_slow):
        _check_drawn(f"faults.random_slow[{place}]", drawn_slow)
    for place, drawn_stop in enumerate(faults.random_stop):
        _check_drawn(f"faults.random_stop[{place}]", drawn_stop)


def _check_node(name: str, node: int, scenario: Scenario) -> None:
    if scenario.faults.strike == "Roles" and not 0 <= node < scenario.nodes:
        raise ScenarioError(f"{name} is {node} of {scenario.nodes} roles")
    if not 0 <= node < scenario.nodes + scenario.cluster.spares:
        raise ScenarioError(f"{name} is {node} of {scenario.nodes} nodes and the spares")


def _check_slow(name: str, slow: SlowFault, scenario: Scenario) -> None:
    _check_node(f"{name}.node", slow.node, scenario)
    if slow.factor < 1 or slow.duration_seconds <= 0:
        raise ScenarioError(f"{name}: factor must be at least 1, duration_seconds positive")
    if slow.proc is not None and not 0 <= slow.proc < scenario.job.procs_per_node:
        raise ScenarioError(f"{name}.proc is {slow.proc} of {scenario.job.procs_per_node}")
    if slow.peer is None:
        return
    _check_node(f"{name}.peer", slow.peer, scenario)
    if slow.peer == slow.node:
        raise ScenarioError(f"{name}.peer is {slow.peer}: no second node")


def _check_drawn(name: str, drawn: RandomSlow | RandomStop) -> None:
    _positive(f"{name}.node_hours_between", drawn.node_hours_between)
    for field in drawn.__struct_fields__:
        value = getattr(drawn, field)
        if isinstance(value, Distribution) and sum(part is not None for part in msgspec.structs.astuple(value)) != 1:
            raise ScenarioError(f"{name}.{field}: give exactly one distribution")
