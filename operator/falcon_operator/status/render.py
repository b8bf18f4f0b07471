"""The job's status for people: state, summary, conditions, printer columns. Nothing is decided here."""

from __future__ import annotations

import math
import statistics
from typing import Literal

import msgspec

from falcon_core.recovery import hanging
from falcon_core.recovery.observation import Observation
from falcon_core.recovery.witness import Liveness
from falcon_operator.api import Condition, IterationStatus, TrainingJobStatus
from falcon_operator.intent import intent as intents
from falcon_operator.intent import observe
from falcon_operator.intent.gang import Gathering
from falcon_operator.intent.intent import Intent
from falcon_operator.intent.snapshot import Snapshot
from falcon_operator.status import hang_diagnosis
from falcon_operator.status.diagnoses import fault_where, link_brief, link_where, milliseconds
from falcon_operator.times import clock_time, timestamp

BLIND_SECONDS = 10.0  # without any report while pods run: longer than a change of the bus's leader
CURRENT_ITERATIONS = 8  # the newest, of which the shown iteration time is the median
State = Literal["", "Pending", "Starting", "Running", "Degraded", "Recovering", "Suspended", "Succeeded", "Failed"]
replace = msgspec.structs.replace


def set_condition(
    conditions: list[Condition],
    type_: str,
    value: bool | None,
    reason: str,
    message: str,
    *,
    now: float,
    observed_generation: int,
) -> list[Condition]:
    """The conditions with one of them set; its transition time moves only with its status. None means unknown.

    A condition that has never been true is not added as false.
    """
    word: Literal["True", "False", "Unknown"] = "Unknown" if value is None else "True" if value else "False"
    before = next((one for one in conditions if one.type == type_), None)
    if before is None and value is False and type_ != "Ready":
        return conditions
    since = before.last_transition_time if before is not None and before.status == word else timestamp(now)
    after = Condition(
        type=type_,
        status=word,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=observed_generation,
    )
    if before is None:
        return [*conditions, after]
    return [after if one.type == type_ else one for one in conditions]


def is_true(status: TrainingJobStatus, type_: str) -> bool:
    return any(one.type == type_ and one.status == "True" for one in status.conditions)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a running or starting job looks like."""

    snap: Snapshot
    intent: Intent
    obs: Observation
    live: Liveness
    gathering: Gathering

    @property
    def total(self) -> int:
        return self.snap.job.spec.replicas * self.snap.job.spec.procs_per_replica

    @property
    def training(self) -> int:
        return sum(rank.process == "Running" for rank in self.obs.ranks) if self.obs.running else 0

    @property
    def finished(self) -> int:
        """Ranks that have ended well before the others."""
        return sum(rank.process == "Ended" and rank.exit_code == 0 for rank in self.obs.ranks)

    @property
    def untracked(self) -> str:
        """Why the ranks run without the shim, "" if they run with it."""
        for member in self.intent.generation.members:
            launch = observe.launch_status(self.snap, member.pod_uid)
            if launch is not None and launch.untracked:
                return launch.untracked
        return ""

    @property
    def stalled_since(self) -> float | None:
        return hanging.stalled_since(self.obs)

    @property
    def awaited(self) -> str:
        """Whom a job that does not move waits for, as far as the counts of calls tell; "" if they do not."""
        hang = self.intent.state.hang
        findings = hang.findings if hang else hanging.explain(self.obs, observe.policy(self.snap.job))
        if not findings and hanging.nobody_waits(self.obs):
            return hang_diagnosis.NOBODY_WAITS
        return "; ".join(
            hang_diagnosis.told(one) + ("" if hang else hang_diagnosis.meanwhile(one)) for one in findings[:1]
        )

    @property
    def blind_since(self) -> float | None:
        """Unix seconds of the last report, if none has come for too long although pods run."""
        uids = {pod.uid for pod in self.snap.pods if pod.phase == "Running"}
        if not uids or not self.obs.running or self.obs.running_seconds < BLIND_SECONDS:
            return None
        heard = [at for uid in uids if (at := self._heard_at(uid)) is not None]
        if not heard:
            listening = self.snap.reports.session_healthy_since_seconds
            deaf = listening is None or self.snap.monotonic - listening > BLIND_SECONDS
            return self.snap.now - self.obs.running_seconds if deaf else None
        age = self.snap.monotonic - max(heard)
        return self.snap.now - age if age > BLIND_SECONDS else None

    @property
    def unheard(self) -> bool:
        """A running generation of which this operator has not heard yet, as after its own start."""
        uids = [member.pod_uid for member in self.intent.generation.members]
        return self.obs.running and all(self._heard_at(uid) is None for uid in uids)

    def _heard_at(self, pod_uid: str) -> float | None:
        """When this operator last heard the pod's agent; None for what it found on the bus when it came."""
        received = self.snap.reports.summaries.get(pod_uid)
        return received.at_seconds if received is not None and math.isfinite(received.at_seconds) else None

    @property
    def current_ns(self) -> float | None:
        if not self.obs.running:
            return None
        newest = [
            statistics.median(rank.iteration_ns[-CURRENT_ITERATIONS:])
            for rank in self.obs.ranks
            if rank.iteration_ns and rank.fresh
        ]
        return statistics.median(newest) if newest else None


def state_of(view: View) -> State:
    intent = view.intent
    if intent.state.stop is not None:
        return "Recovering"
    slow = intent.state.slow
    if slow is not None and slow.phase == "Checking":
        return "Recovering"
    if intent.generation.phase == "Stop":
        return "Starting" if view.gathering.placed else "Pending"
    if view.unheard and view.blind_since is None:
        return view.snap.job.status.state or "Starting"
    if view.training + view.finished < view.total and view.blind_since is None and not view.live.agents_lost:
        return "Starting"
    return "Degraded" if slow is not None and (slow.culprit is not None or slow.link is not None) else "Running"


def summary_of(view: View, state: State) -> str:
    """One line: what is wrong, and what is being done about it."""
    text = _summary(view, state)
    if view.live.agents_lost and state in ("Running", "Degraded"):
        names = ", ".join(view.obs.members[replica].pod_name for replica in view.live.agents_lost)
        text = f"agent lost in {names}, training goes on; {text}"
    return text[:1024]


def _summary(view: View, state: State) -> str:
    intent = view.intent
    stop, slow = intent.state.stop, intent.state.slow
    if stop is not None:
        doing = view.gathering.waiting if intent.generation.phase == "Stop" else "restarting"
        return f"{fault_where(stop.fault)}: {stop.fault.text} at {clock_time(stop.since)}; {doing or 'restarting'}"
    if view.blind_since is not None:
        return f"blind: no report from any agent since {clock_time(view.blind_since)}, so nothing is known of its speed"
    if view.stalled_since is not None:
        awaited = f"; {view.awaited}" if view.awaited else ""
        return f"stalled: no rank has moved since {clock_time(view.stalled_since)}{awaited}"
    if slow is not None and slow.culprit is not None:
        culprit = slow.culprit
        doing = {
            "Located": f"waits: {slow.blocked}" if slow.blocked else f"ignored so far, {slow.loss.seconds:.1f} s lost",
            "Mitigating": "replacing the node",
            "Checking": f"replaced by {slow.replaced_by}, restarting" if slow.replaced_by else "replaced, restarting",
        }.get(slow.phase, "")
        return (
            f"rank {culprit.rank} on {culprit.node} computes {culprit.slowdown:.1f}x slower since"
            f" {clock_time(slow.onset_at)}; {doing}"
        )
    if slow is not None and slow.link is not None:
        factor = slow.slow_ns / slow.healthy_ns
        return (
            f"iterations {factor:.1f}x slower since {clock_time(slow.onset_at)}: {link_brief(slow.link)};"
            f" ignored so far, {slow.loss.seconds:.1f} s lost"
        )
    if slow is not None:
        factor = slow.slow_ns / slow.healthy_ns
        return f"iterations {factor:.1f}x slower since {clock_time(slow.onset_at)}; no rank stands out"
    if view.unheard:
        return view.snap.job.status.summary
    if state in ("Pending", "Starting"):
        return view.gathering.waiting or f"{view.training} of {view.total} ranks have started"
    return f"all ranks train, not watched: {view.untracked}" if view.untracked else "all ranks train"


def render(view: View, before: TrainingJobStatus, state: State, summary: str) -> TrainingJobStatus:
    """The whole display part over the intent; diagnoses are the caller's."""
    intent, obs = view.intent, view.obs
    if view.unheard and view.blind_since is None:
        return replace(
            before,
            state=state,
            generation=intent.generation,
            incident=intents.encode_state(intent.state),
            excluded_nodes=intent.excluded,
            counters=intent.counters,
        )
    current, healthy = view.current_ns, intent.state.healthy_ns
    status = replace(
        before,
        observed_generation=view.snap.job.metadata.generation,
        state=state,
        summary=summary,
        ready=f"{view.training}/{view.total}",
        iteration=milliseconds(current) if current else "",
        healthy_iteration=milliseconds(healthy) if healthy else "",
        iterations=IterationStatus(
            current_microseconds=round(current / 1e3) if current else None,
            healthy_microseconds=round(healthy / 1e3) if healthy else None,
            count=max((rank.iterations for rank in obs.ranks), default=0) if obs.running else 0,
        ),
        generation=intent.generation,
        incident=intents.encode_state(intent.state),
        excluded_nodes=intent.excluded,
        counters=intent.counters,
    )
    return replace(status, conditions=_conditions(view, before, state, summary))


def _conditions(view: View, before: TrainingJobStatus, state: State, summary: str) -> list[Condition]:
    conditions = list(before.conditions)
    now, generation = view.snap.now, view.snap.job.metadata.generation

    def put(type_: str, value: bool | None, reason: str, message: str) -> None:
        nonlocal conditions
        conditions = set_condition(conditions, type_, value, reason, message, now=now, observed_generation=generation)

    if view.blind_since is not None:
        put(
            "Ready",
            None,
            "Blind",
            f"no report from any agent since {clock_time(view.blind_since)}: training may go on, but nobody watches it;"
            " look at etcd and at the containers falcon-agent",
        )
    elif view.stalled_since is not None:
        since, awaited = clock_time(view.stalled_since), f"; {view.awaited}" if view.awaited else ""
        hang = ": a hang" if view.intent.state.hang else ""
        put("Ready", False, "Stalled", f"every process lives, but no rank has moved since {since}{hang}{awaited}")
    elif state in ("Running", "Degraded"):
        watched = f"; they are not watched: {view.untracked}" if view.untracked else ""
        number = view.intent.generation.number
        put("Ready", True, "Training", f"all {view.total} ranks of generation {number} train{watched}")
    else:
        put("Ready", False, state, view.gathering.waiting or f"the job is {state.lower()}")
    slow, stop = view.intent.state.slow, view.intent.state.stop
    named = slow is not None and slow.culprit is not None and slow.phase != "Checking"
    if slow is not None and slow.culprit is not None and named:
        culprit = slow.culprit
        put(
            "Degraded",
            True,
            "Straggler",
            f"rank {culprit.rank} (pod {culprit.pod_name}, node {culprit.node}) is slow since"
            f" {timestamp(slow.onset_at)}: see diagnosis {slow.id}",
        )
    elif slow is not None and slow.link is not None:
        put("Degraded", True, "SlowLink", f"slow transfers over {link_where(slow.link)}: see diagnosis {slow.id}")
    else:
        put("Degraded", False, "NoStraggler", "no rank is known to be slow")
    if state == "Recovering":
        incident = stop.id if stop is not None else slow.id if slow is not None else ""
        put("Recovering", True, "Restarting", f"training stands still: see diagnosis {incident}")
    else:
        put("Recovering", False, "Recovered", "no recovery is under way")
    lost = view.live.agents_lost
    if lost and obs_running(view):
        pods = ", ".join(view.obs.members[replica].pod_name for replica in lost)
        put(
            "AgentLost",
            True,
            "LeaseLost",
            f"the agent in {pods} is silent while its peers advance: training is untouched, that pod is not watched",
        )
    elif not view.live.bus_trouble:
        put("AgentLost", False, "AgentsAlive", "every agent reports")
    put("Suspended", False, "Resumed", "spec.suspend is false")
    put("Failed", False, "Valid", "the job can run")
    return conditions


def obs_running(view: View) -> bool:
    """An agent that is silent while its generation is being stopped or gathered is the recovery's matter."""
    return view.obs.running and view.intent.state.stop is None
