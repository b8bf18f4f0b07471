"""Define what a job's owner decides about slowdowns and failures: when they count, and what may be done."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from falcon_core.errors.table import MOST_JOB_RULES, JobRule
from falcon_core.recovery.views import STRATEGY_TYPES, StrategyName
from falcon_core.wire.reporting.anomalies import MAX_METRICS, OutputMetric
from falcon_operator.api.common import ApiStruct
from falcon_operator.api.markers import cel, schema


class DetectionSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The thresholds of the signals. Percentages are of healthy times."""

    verify_percent: Annotated[int, schema(minimum=1, maximum=1000)] = 10
    """Percent by which the iteration time after a change must exceed the time before it to count as a slowdown; back
    within the same margin of healthy counts as relief. Default 10."""

    median_percent: Annotated[int, schema(minimum=101, maximum=1000)] = 150
    """Percent of the group's median compute time from which a rank counts as a straggler. Default 150."""

    suspicion_percent: Annotated[int, schema(minimum=101, maximum=1000)] = 110
    """Percent of the median transfer time of the other groups of its kind from which a group of ranks is suspected of a
    slow link since its first iteration. Then links are measured, as pauseBudget allows. Default 110."""

    consecutive_iterations: Annotated[int, schema(minimum=1, maximum=1000)] = 5
    """Iterations in a row for which medianPercent must be exceeded. Default 5."""

    hang_factor: Annotated[int, schema(minimum=2, maximum=1000)] = 3
    """Silence of all ranks for this many average iterations counts as a stall, though never less than 10 seconds or
    than twice the longest pause seen before. A stall that lasts is reported as a hang. Default 3."""

    pause_budget: Annotated[str, schema(maxLength=6, pattern="^(100|[0-9]{1,2}(\\.[0-9]{1,2})?)%$")] = "1%"
    """Share of the job's time for which all its ranks may stand still at an iteration's start, so that the links
    between its pods are measured where one is slow and it is not known which. A pause takes about 3 seconds, and none
    follows another within a minute. 0% allows none. Default 1%."""


class Strategy(ApiStruct, frozen=True, kw_only=True):
    type: Annotated[StrategyName, schema(description=" ".join(facts.explanation for facts in STRATEGY_TYPES))]

    overhead_seconds: Annotated[int | None, schema(minimum=0, maximum=86400)] = None
    """First estimate of what the strategy costs the job, seconds. Measured values take its place. Default: Falcon's own
    estimate."""


class MitigationSpec(ApiStruct, frozen=True, kw_only=True):
    mode: Literal["Enforce", "Observe", "Off"] = "Enforce"
    """Enforce (the default) acts on slowdowns. Observe diagnoses them only, and writes down what it would have done.
    Off takes Falcon out of the training: the shim is not loaded and nothing is judged; only failures are handled. Write
    it in quotes, mode: "Off", since YAML reads a bare Off as false. Processes that run already keep their shim until
    they are started again. A replacement that is being prepared when the mode changes is given back."""

    confidence: Literal["High", "Low"] = "High"
    """What it takes to replace a slow node. High (the default) asks for evidence that the node is at fault and not its
    rank's share of the work: a counter shows a cause, all ranks of the node are slow, the rank was healthy there and
    always has the same work, or the slowness stays for far longer than work takes to move between the ranks of this
    job. Until then the rank is named, and the note says what is missing. Low replaces the node of every rank that is
    named. For example, confidence: Low suits a job of experts whose router is known to balance the load."""

    strategies: Annotated[
        list[Strategy],
        schema(
            cel(
                "self.all(a, self.exists_one(b, b.type == a.type))",
                "spec.mitigation.strategies: each type may stand once: remove the repeated entries",
            ),
            list_type="map",
            keys=["type"],
            minItems=1,
            maxItems=len(STRATEGY_TYPES),
        ),
    ] = msgspec.field(
        default_factory=lambda: [Strategy(type=facts.name) for facts in STRATEGY_TYPES if facts.by_default]
    )
    """What may be done, each at most once in the list. A strategy is applied when the time lost to the incident reaches
    its overhead, so the cheaper comes first whatever the order here. Default: Ignore and ReplaceNode."""


class RecoverySpec(ApiStruct, frozen=True, kw_only=True):
    retries: Annotated[int, schema(minimum=0, maximum=10)] = 3
    """How often a call that sets a communicator up is tried again in place, after 1, 2, 4, 4 … s, where a peer could
    not be reached and a second try is safe. Nothing is restarted for that. Gloo itself ends after 3. Default 3; 0:
    never. A change applies from the job's next generation on."""

    standby: Literal["None", "Imports", "Processes"] = "None"
    """What waits in the pod of each rank for the next restart. Imports: an interpreter started with the container's
    command, which has imported the installed packages that the rank had imported, and has run no line of the program.
    It takes their memory for each rank, and a fifth of a core while it imports. For commands that start Python itself;
    where that is not so, or memory is short, a restart is as without, and the condition StandbyReady says why. Packages
    that were installed from a local folder are never imported ahead. Processes: the program itself, which has run up to
    where it meets the other ranks at MASTER_PORT. For programs that promise to do nothing there that a second process
    next to the rank may not do, and to read nothing that may be older at the restart, such as the newest checkpoint.
    Where that is not possible, Imports takes its place."""

    standby_replicas: Annotated[int, schema(minimum=0, maximum=64)] = 0
    """Pods that the job keeps in addition to its replicas, on spares of the warm pool (without one: on free nodes).
    Each has its container and agent started and, unless standby is None, in place of each rank an interpreter that has
    imported what the job's ranks import. A lost or slow node's replica goes on in such a pod at once, and another is
    made. They are made 20 s after training has begun, and hold whatever the pod template requests. Default 0."""

    restarts: Annotated[int, schema(minimum=0, maximum=1000)] = 3
    """Restarts after failures within the window. The next failure replaces the node where it was at fault each time,
    once in a window; otherwise it ends the job. Default 3."""

    window: Annotated[
        str,
        schema(
            cel(
                "self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') && self != '' && duration(self) >= "
                "duration('1m') && duration(self) <= duration('168h')",
                "spec.recovery.window must be a duration from 1m to 168h in hours, minutes and seconds: write for "
                "example 1h or 1h30m",
            ),
            maxLength=32,
        ),
    ] = "1h"
    """The window over which restarts are counted: a duration such as 90s, 30m or 1h30m, from 1m to 168h. Default 1h."""

    on_repeated: Literal["Fail", "Suspend"] = "Fail"
    """What happens to the job when the same failure comes again after three restarts: with the same words and at the
    same iteration after a resume, or on several nodes. Fail: the job has failed. Suspend: the job holds no pods, its
    condition Suspended says what came, and it goes on when its spec changes. Default Fail."""

    outage_wait: Annotated[
        str,
        schema(
            cel(
                "self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') && self != '' && duration(self) <= "
                "duration('168h')",
                "spec.recovery.outageWait must be a duration up to 168h in hours, minutes and seconds: write for "
                "example 30m or 1h30m, or 0s not to wait",
            ),
            maxLength=32,
        ),
    ] = "30m"
    """How long the job waits for what lies outside it and is missed by three of its nodes at once (by all, if it has
    fewer): a shared folder, a token, storage, a hub, names. The ranks are started again after 1, 2, 4 ... 300 s, and
    none of these starts counts against restarts. Then onRepeated decides. A duration up to 168h; 0s: it does not wait.
    Default 30m."""

    rules: Annotated[
        list[
            Annotated[
                JobRule,
                schema(
                    cel(
                        "has(self.pattern) || has(self.exitCodes)",
                        "a rule of spec.recovery.rules says nothing to look for: give pattern, exitCodes or both",
                    ),
                    cel(
                        "has(self.class) ? !has(self.severity) && !has(self.domain) : has(self.severity) && "
                        "has(self.domain)",
                        "a rule of spec.recovery.rules needs class, or else severity and domain together: give one of "
                        "the two",
                    ),
                ),
            ]
        ],
        schema(maxItems=MOST_JOB_RULES),
    ] = []
    """What errors of the program's own mean. The first rule that fits a failure decides, before the table of
    docs/errors.md."""

    on_drain: Literal["Move", "Ignore"] = "Move"
    """What the job does where a node of its is cordoned, drained or about to go (a spot notice). Move: a pod is
    prepared on another node while training goes on, then all ranks restart; evictions from that node are refused until
    then, for ten minutes at most. Ignore: the job stays until its pod is deleted, and no eviction is refused. Default
    Move."""


class AnomaliesSpec(ApiStruct, frozen=True, kw_only=True):
    metrics: Annotated[list[OutputMetric], schema(list_type="map", keys=["name"], maxItems=MAX_METRICS)] = []
    """Numbers that the ranks print, besides those that Falcon knows. One that stays NaN or infinite is reported with
    the line and the iteration at which it began. What is done about it, onNaN says."""

    on_nan: Literal["Ignore", "Restart"] = msgspec.field(default="Ignore", name="onNaN")
    """What is done when the loss, or a number of metrics, stays NaN or infinite. Ignore (the default): nothing.
    Restart: all ranks are restarted from a checkpoint that was saved before the last finite value, in memory or in the
    folder of falcon_torch.Checkpoint, which then keeps an older one as well; what was saved later is removed. That is
    done once within spec.recovery.window. It needs spec.checkpoint.memory, and spec.mitigation.mode Enforce."""

    verify_every: Annotated[int, schema(minimum=0, maximum=1_000_000)] = 0
    """The result of one in so many all-reduces is compared between all ranks, which must have the same bytes. It works
    for Gloo on CPUs, in jobs whose processes have one group of all ranks (plain data parallelism); NCCL's results lie
    in the devices' memory and are not read. A rank whose result differs is named (SilentDataCorruption), and nothing is
    done about it. 0 (the default): no result is compared. It needs a spec.mitigation.mode other than Off."""


class PreflightSpec(ApiStruct, frozen=True, kw_only=True):
    mode: Literal["Enforce", "Report", "Off"] = "Off"
    """Before the first start, before a start with a new pod, and after a failure that points at a machine, every pod
    measures for two seconds how fast its devices compute and move data, with the container's own Python and its
    libraries, and whether they compute rightly. A machine whose rate is below two thirds of the median of the others
    with the same devices, twice in a row, is slow. Then three pods or more measure the links between them by TCP: a
    machine whose links are all more than three times slower than the others', twice in a row, is slow, too. Enforce: it
    is left for a ready spare of the warm pool before the first step; where none is ready, the job starts all the same.
    Report: the condition MachinesChecked says so. Off, the default: nothing is measured. The imports of PyTorch and the
    measurement add seconds to such a start. During any other restart of the same pods, unless the program is at fault,
    runs a smoke test of 0.2 s on the CPUs; the restart does not wait for it. A machine with less than half of the
    others' rate, twice in a row, is left likewise, and the failure is SEV1."""
