"""Run one look: observe → ``decide`` → store the intent → publish the plan → show the status → carry out the effects.

The intent is written to the job's TrainingRun under the resourceVersion that was read, before any effect is carried
out. The plan follows it at once: ranks stand still until they have it, but no rank waits for what is shown (ADR
83). If another actor wrote in between, this look is void, and the next look starts afresh. The status is a projection
of the intent. Effects are idempotent, so an effect that fails is simply wanted again. Decisions run in a thread: a job
of ten thousand ranks must not hold up the election or another job's events.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec
import structlog

from falcon_core.model import Cause
from falcon_core.wire.keys import JobKey
from falcon_operator.api.common import LABEL_JOB_UID
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobStatus
from falcon_operator.api.trainingrun import TrainingRun
from falcon_operator.base import effects as fx
from falcon_operator.base.ports import (
    Bus,
    Clock,
    Conflict,
    Foreign,
    JobFindings,
    Kube,
    LeadershipLost,
    NewerLayout,
    NotFound,
    Oversize,
    PodSettings,
    PodView,
    Rejected,
    SeriesAnswer,
    Unavailable,
)
from falcon_operator.intent import on_demand
from falcon_operator.intent.model.intent import Intent, begin
from falcon_operator.intent.model.run import decode, encode, lasting
from falcon_operator.intent.model.snapshot import Snapshot, is_trainer
from falcon_operator.intent.placement import gang
from falcon_operator.job.carry_out import REFUSED_SECONDS, EffectRunner, bus_key
from falcon_operator.job.cluster_durations import Elsewhere
from falcon_operator.job.decide import Decision, decide
from falcon_operator.job.failures import JobFailures
from falcon_operator.job.memory import Memory
from falcon_operator.manifests import namespace_rules
from falcon_operator.manifests.pods import build_pod
from falcon_operator.manifests.validation import misfits, problems
from falcon_operator.pool.burn_ins import BurnIns
from falcon_operator.status.failure_reports import FailureReports
from falcon_operator.status.failures import failure_of
from falcon_operator.status.limits import essence, have_moved, minimal

DISPLAY_SECONDS = 3.0  # between two writes of figures that have moved
FIGURES_SECONDS = 30.0  # between two writes of figures that have hardly moved
WELL_RUN_SECONDS = 300.0  # likewise of the run's, while all is well: if they are lost, they are learned again
CONFLICT_SECONDS = 0.1
LONGEST_CONFLICT_SECONDS = 2.0  # after many in a row
log = structlog.get_logger(__name__)
replace = msgspec.structs.replace


class Metrics(Protocol):
    """The counters that the reconciler needs."""

    def event(self, reason: str) -> None:
        """Count a turning point of some job (the Event's reason)."""
        ...

    def stood_still(self, cause: str, error_class: str, seconds: float) -> None:
        """Count the standstill of a failure, a hang or a pause that is over."""
        ...

    def iterations(self, name: tuple[str, str], current_seconds: float | None, healthy_seconds: float | None) -> None:
        """Take the job's iteration times as this look has found them, in seconds; None: not known."""
        ...

    def checkpoint(self, name: tuple[str, str], newest: tuple[int, float, float] | None) -> None:
        """Take the newest step in memory, when it was saved, and the seconds that training waited; None: none."""
        ...

    def restored(self, seconds: float) -> None:
        """Count how long the slowest rank of a job took to load its checkpoint after a restart."""
        ...

    def failure_unshown(self, kind: str) -> None:
        """Count a failure that neither a status nor an Event could show."""
        ...

    def reports_used(self, ages_seconds: Iterable[float]) -> None:
        """Count the reports that a look at a job was the first to use, by their age at its end."""
        ...


Decided = tuple[Decision, tuple[int, float, float] | None]  # the decision, and the newest checkpoint as metrics show it


class InThread(Protocol):
    """Run a decision where it holds up no other job, and return what it returns."""

    def __call__(self, decided: Callable[[Snapshot], Decided], snap: Snapshot, /) -> Awaitable[Decided]: ...


class Settings(Protocol):
    """The part of the operator's settings that the reconciler uses."""

    @property
    def namespace(self) -> str:
        """Return the operator's own namespace."""
        ...

    @property
    def pods(self) -> PodSettings: ...


class JobReconciler:
    """A worker that brings one job at a time closer to its spec. Calls for different jobs may run at the same time."""

    def __init__(
        self,
        kube: Kube,
        bus: Bus,
        settings: Settings,
        metrics: Metrics,
        clock: Clock,
        findings: Callable[[str], JobFindings | None] = lambda _: JobFindings(),
        series: Callable[[TrainingJob], SeriesAnswer | None] = lambda _: None,
        shown: Callable[[TrainingJob, int, TrainingJobStatus], None] = lambda *_: None,
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        self._kube = kube
        self._bus = bus
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._findings = findings  # the anomaly service's, by the job's uid
        self._series = series  # likewise what users want to see of it
        self._shown = shown  # gets each look's job, generation of its processes, and status
        self._in_thread = in_thread
        self._burn_ins = BurnIns(kube, settings.namespace, clock)
        self._runner = EffectRunner(kube, bus, self._burn_ins, clock)
        self._memory: dict[tuple[str, str], Memory] = {}
        self._elsewhere = Elsewhere()
        self._reports = FailureReports(JobFailures(kube), clock, lambda: metrics.failure_unshown("TrainingJob"))

    async def reconcile(self, namespace: str, name: str, is_urgent: Callable[[], bool] = lambda: False) -> float | None:
        """Look at the job once. Return when to look again (seconds); None if only a change makes that worth while.

        ``is_urgent`` says whether something has happened since that calls for the next look soon.
        """
        job = await self._kube.get_job(namespace, name)
        memory = self._memory.get((namespace, name))
        # A job of the same name with another uid is another job: what is known of the earlier one is void.
        if memory is not None and (job is None or job.metadata.uid != memory.uid):
            await self._bus.forget(JobKey(namespace, name, memory.uid))
            del self._memory[(namespace, name)]
            memory = None
        if job is None:
            return None
        if memory is None:
            memory = self._memory[(namespace, name)] = Memory(uid=job.metadata.uid)
        # Each look begins without a failure, so that one that has passed is no longer shown.
        before, memory.failure = memory.failure, None
        try:
            again = await self._look(job, memory, is_urgent)
        except LeadershipLost:
            raise
        except Exception as error:
            await self._reports.report(job, memory.spell, failure_of(error))
            raise
        if memory.ended_early and memory.failure is None:
            memory.failure = before  # what failed before was not tried again
        await self._reports.report(job, memory.spell, memory.failure)
        return again

    async def _look(self, job: TrainingJob, memory: Memory, is_urgent: Callable[[], bool]) -> float | None:
        """Look, decide and act. What could not be carried out stands in ``memory.failure`` or is raised."""
        try:
            again = await self._decide_and_act(job, memory, is_urgent)
        except (Foreign, NewerLayout, Oversize) as error:
            memory.failure = failure_of(error)
            again = REFUSED_SECONDS
        except (Conflict, NotFound) as error:  # another actor wrote first, or deleted: look again
            if isinstance(error, Conflict):
                memory.intent = None
            memory.failure = memory.failure or failure_of(error)
            memory.conflicts += 1
            # A second writer may write at each look. Longer pauses keep the two from loading the API server.
            return min(LONGEST_CONFLICT_SECONDS, CONFLICT_SECONDS * 2.0 ** min(memory.conflicts - 1, 16))
        memory.conflicts = 0
        return again

    async def _decide_and_act(self, job: TrainingJob, memory: Memory, is_urgent: Callable[[], bool]) -> float | None:
        snap = await self._observe(job, memory)
        # In a thread: the decision about ten thousand ranks would hold up every other job's events.
        decision, newest = await self._in_thread(_decided, snap)
        self._count_reports(snap, memory)
        if decision.intent is None:
            return decision.again_seconds
        figures, name = decision.status.iterations, (job.metadata.namespace, job.metadata.name)
        times = (_seconds(figures.current_microseconds), _seconds(figures.healthy_microseconds))
        self._metrics.iterations(name, *times)
        self._metrics.checkpoint(name, newest)
        self._elsewhere.take(job.metadata.uid, decision.intent.recovery.habits.durations)
        self._shown(job, decision.intent.membership.generation, decision.status)
        # Agents may connect before the plan is out, and a gateway refuses pods that were not announced.
        self._announce(snap, decision.intent)
        # The intent is durable before anything follows from it (docs/architecture.md §11).
        postponed = [await self._write_run(job, decision.intent, memory)]
        # Ranks stand still until they have the plan; only then comes what people read.
        broken = await self._runner.pass_on(snap, decision, memory)
        postponed.append(await self._write_status(job, decision, memory))
        self._count_standstills(snap.intent, decision.intent)
        await self._record(job, decision.events, memory)
        again = await self._runner.carry_out(snap, decision, memory, is_urgent, broken=broken)
        # The next look serves all who wait: the decision, failed effects and postponed writes.
        due = [decision.again_seconds, again, *postponed]
        return min((seconds for seconds in due if seconds is not None), default=None)

    def _count_reports(self, snap: Snapshot, memory: Memory) -> None:
        """Count the reports that this look was the first to use."""
        now = self._clock.unix()
        self._metrics.reports_used(
            max(0.0, now - received.gateway_unix)
            for received in snap.reports.summaries.values()
            if received.gateway_unix is not None and received.at_seconds > memory.reports_until
        )
        memory.reports_until = snap.monotonic

    def _count_standstills(self, before: Intent | None, after: Intent) -> None:
        """Count the failures, hangs and pauses that were over at this look."""
        known = before.history if before is not None else []
        paused = after.recovery.pauses.seconds - (before.recovery.pauses.seconds if before is not None else 0.0)
        if paused > 0:
            self._metrics.stood_still("Validation", "", paused)
        for closed in after.history:
            # The history keeps old incidents, and only those that this look has closed count.
            if closed in known or closed.seconds is None:
                continue
            if closed.restore is not None and closed.restore.seconds:
                self._metrics.restored(closed.restore.seconds)
            if closed.stop is not None:
                self._metrics.stood_still(closed.stop.fault.cause, closed.stop.fault.error_class, closed.seconds)
            elif closed.outcome == "Moved":  # a hang that was ended goes on as a failure
                self._metrics.stood_still(Cause.HANG, "", closed.seconds)

    # -- observe -----------------------------------------------------------------------------------------------------

    async def _observe(self, job: TrainingJob, memory: Memory) -> Snapshot:
        # Read side by side, so that the parts of the snapshot are of nearly the same moment.
        pods, nodes, pools, run = await asyncio.gather(
            self._kube.list_pods(job.metadata.namespace, {LABEL_JOB_UID: job.metadata.uid}),
            self._kube.nodes(),
            self._kube.list_pools(),
            self._kube.get_run(job.metadata.namespace, job.metadata.name),
        )
        intent = await self._intent(job, run, memory)
        reference = job.spec.warm_pool_ref
        named = next((pool for pool in pools if reference is not None and pool.metadata.name == reference.name), None)
        is_slow = intent is not None and bool(intent.recovery.slowdowns)
        # A member's pod counts even if its owner reference was removed; its ranks still train.
        known = {member.pod_uid for member in intent.membership.members} if intent is not None else set()
        snap = Snapshot(
            job=job,
            intent=intent,
            elsewhere=self._elsewhere.of_others(job.metadata.uid) if is_slow else [],
            unreadable=run.problems if run is not None and intent is not None else (),
            pods=[pod for pod in pods if is_trainer(pod) and (pod.owned or pod.uid in known)],
            nodes=nodes,
            pool=named,
            reports=self._bus.reports(job.metadata.uid),
            findings=self._findings(job.metadata.uid),
            series=self._series(job),
            problems=[str(problem) for problem in problems(job, self._settings.pods.error_overrides)],
            refused=memory.refused,
            refused_fences=dict(memory.refused_fences),
            settings=self._settings.pods,
            now=self._clock.unix(),
            nonce=secrets.token_hex(16),
            monotonic=self._clock.monotonic(),
            gated_at=self._gated_at(pods, intent, memory),
            phase_seen_at=self._phase_seen_at(intent, memory),
        )
        # Only excluded nodes are tested, so other jobs cost no further request.
        if named is not None and intent is not None and intent.membership.exclusions:
            namespace = job.metadata.namespace
            looked = await self._burn_ins.look(intent.membership.exclusions, named, namespace, snap.nodes)
            snap = replace(snap, burn_ins=looked)
        # A dry run shows quotas and admission policies before the first pod; later it would tell nothing new.
        if not snap.problems and _about_to_begin(snap):
            snap = await self._prepare(snap, memory)
        return snap

    async def _intent(self, job: TrainingJob, run: TrainingRun | None, memory: Memory) -> Intent | None:
        """Return the stored intent with the newest figures; None where no run of this job is stored."""
        if run is not None and not run.metadata.owner_uid:
            raise Foreign(
                f"TrainingRun {job.metadata.namespace}/{job.metadata.name} exists, but no operator created it:"
                " delete it if it is not needed, or give the job another name"
            )
        if run is not None and run.metadata.owner_uid != job.metadata.uid:
            await self._kube.delete_run(run)  # of a namesake that is gone
            run = None
        if run is not None and run.refusal:
            # Neither decide from a part of it nor write: what the newer operator remembers would be lost.
            raise NewerLayout(run.refusal)
        # An unchanged run holds no more than memory does, and memory has the figures whose write was postponed.
        known = memory.run is not None and run is not None
        if known and memory.intent is not None and _version(memory.run) == _version(run):
            return memory.intent
        memory.run, memory.intent = run, None
        return decode(job, run.spec) if run is not None else None

    def _phase_seen_at(self, intent: Intent | None, memory: Memory) -> float | None:
        if intent is None:
            return None
        phase = (intent.membership.generation, intent.membership.phase)
        if phase != memory.phase:
            memory.phase, memory.phase_at = phase, self._clock.monotonic()
        return memory.phase_at

    def _gated_at(self, pods: list[PodView], intent: Intent | None, memory: Memory) -> float | None:
        if intent is not None and gang.held(pods, intent.membership):
            memory.gated_at = self._clock.monotonic()
        return memory.gated_at

    async def _prepare(self, snap: Snapshot, memory: Memory) -> Snapshot:
        """Ask the API server whether it accepts the job's pods, and take the job's names, before the first pod is made.

        Return the snapshot with the objection, if there is any.
        """
        # The API server cannot be asked about a template of which no pod can be built.
        if wrong := misfits(snap.job):
            return replace(snap, problems=[str(problem) for problem in wrong])
        try:
            snap = await self._dry_run(snap)
            # What is made for pods that will be refused would only be left behind.
            if not snap.problems:
                await self._runner.groundwork(snap.job, memory)
        except Foreign as error:
            memory.failure = failure_of(error)
            return replace(snap, hindrance=str(error), hindrance_reason="NameTaken")
        except (Rejected, Unavailable) as error:
            memory.failure = failure_of(error, "the job's first pods")
            reason = "NotAdmitted" if isinstance(error, Rejected) else "ApiServerError"
            return replace(snap, hindrance=str(error), hindrance_reason=reason)
        return snap

    async def _dry_run(self, snap: Snapshot) -> Snapshot:
        intent = begin(snap.job, snap.intent or Intent(), snap.now)
        membership = intent.membership
        rules = await self._kube.namespace_rules(snap.job.metadata.namespace)
        manifest = namespace_rules.met(
            build_pod(snap.job, membership.members[0], snap.settings, excluded=membership.excluded_nodes),
            rules,
            snap.job.spec.injected,
        )
        # The API server would say the same without the field to set, or let some of the job's pods in.
        if wrong := namespace_rules.problems(snap.job, manifest, rules):
            return replace(snap, problems=[str(problem) for problem in wrong])
        try:
            await self._kube.dry_run_pod(manifest)
        except Rejected as error:
            if error.transient:
                raise
            return replace(snap, problems=[f"spec.template: the API server refuses a pod made from it: {error}"])
        return snap

    # -- announce ----------------------------------------------------------------------------------------------------

    def _announce(self, snap: Snapshot, intent: Intent) -> None:
        """Announce the pods that exist, and those that the intent still names: their last reports are evidence."""
        pods = {pod.uid for pod in snap.pods} | {member.pod_uid for member in intent.membership.members}
        self._bus.announce(bus_key(snap.job), frozenset(pods - {""}), snap.job.spec.procs_per_replica)

    # -- write -------------------------------------------------------------------------------------------------------

    async def _write_run(self, job: TrainingJob, intent: Intent, memory: Memory) -> float | None:
        """Store the intent. If only figures have changed, store it at most every ``FIGURES_SECONDS``.

        While all is well, every ``WELL_RUN_SECONDS``.
        Return in how many seconds a postponed write is due; None if no write was postponed.
        """
        spec = encode(job, intent)
        memory.intent = intent
        before = memory.run
        if before is not None and spec == before.spec:
            return None
        now = self._clock.monotonic()
        due = memory.run_at + (WELL_RUN_SECONDS if intent.recovery.is_well else FIGURES_SECONDS) - now
        # Figures can be measured again after a crash, so their write may wait. All else may not.
        if before is not None and due > 0 and lasting(spec) == lasting(before.spec):
            return due
        try:
            memory.run = await self._kube.write_run(job, before, spec)
        except BaseException:
            memory.run = memory.intent = None  # what is stored now is not known
            raise
        memory.run_at = now
        return None

    async def _write_status(self, job: TrainingJob, decision: Decision, memory: Memory) -> float | None:
        """Write the status at once if more than figures changed, else after ``DISPLAY_SECONDS`` or ``FIGURES_SECONDS``.

        Return in how many seconds a postponed write is due; None if no write was postponed.
        """
        if decision.status == job.status:
            return None
        now = self._clock.monotonic()
        least = DISPLAY_SECONDS if have_moved(job.status, decision.status) else FIGURES_SECONDS
        due = memory.status_at + least - now
        # A status that the server has refused is not sent again until its content changes.
        unwritten = memory.refused_status is not None and essence(decision.status) == essence(memory.refused_status)
        # An Event points to the status, so the status must not come later than the Event.
        unchanged = not decision.events and essence(decision.status) == essence(job.status)
        if due > 0 and (unwritten or unchanged):
            return due
        memory.status_at = now
        try:
            await self._kube.write_job_status(job, decision.status)
            memory.refused_status = None
            memory.recorded.clear()
        except Rejected as error:
            memory.refused_status = decision.status
            log.error("status refused", job=job.metadata.name, namespace=job.metadata.namespace, error=str(error))
            # A refused status must not leave the old one standing without a word: write the least that says so.
            await self._kube.write_job_status(job, minimal(job.status, decision.status, str(error), self._clock.unix()))
        return None

    async def _record(self, job: TrainingJob, events: list[fx.Event], memory: Memory) -> None:
        """Record each Event once.

        An Event is not repeated while the API server refuses the status from which the next look would know the Event.
        """
        meta = job.metadata
        for event in events:
            if event in memory.recorded:
                continue
            memory.recorded.add(event)
            log.info("event", job=meta.name, namespace=meta.namespace, reason=event.reason, note=event.note)
            self._metrics.event(event.reason)
            await self._kube.record_event(job, event.type, event.reason, event.note)


def _about_to_begin(snap: Snapshot) -> bool:
    job, intent = snap.job, snap.intent
    if job.spec.suspend or job.metadata.deletion_timestamp or job.status.completion_time:
        return False
    if intent is None:
        return not snap.pods
    return not intent.membership.members and intent.end is None


def _decided(snap: Snapshot) -> Decided:
    """Decide about a job, and return with it what its metrics say of its checkpoints (``Metrics.checkpoint``)."""
    decision = decide(snap)
    if decision.intent is None:
        return decision, None
    return decision, on_demand.newest_figures(snap, decision.intent.membership)


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _version(run: TrainingRun | None) -> str:
    return run.metadata.resource_version if run is not None else ""
