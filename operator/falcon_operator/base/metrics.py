"""Export Prometheus metrics. Each scrape counts jobs and pools by their last known status.

Iteration times come from each look at a job, since the status is written only when they change. What a job's status
counts (restarts, replacements) is durable and therefore exported from the status. What this process counts (reconciles,
events, incidents seen) begins at 0 again with each process, as counters may.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from falcon_core.model import ANOMALIES
from falcon_core.wire.reporting.anomalies import Kind
from falcon_operator.base.ports import BusState
from falcon_operator.base.time_format import unix_seconds

JobName = tuple[str, str]
_AGES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class JobFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one job's status."""

    uid: str
    state: str = ""
    restarts: int = 0
    replacements: int = 0
    diagnoses: tuple[tuple[str, str, str, str], ...] = ()  # id, kind, cause, class of the error
    runs_out: tuple[tuple[str, float], ...] = ()  # resource, and when its limit is reached: unix seconds

    @property
    def anomalies(self) -> set[str]:
        """Return the causes of its anomalies: the status has each only for as long as it is reported."""
        return {cause for _, _, cause, _ in self.diagnoses if cause in ANOMALIES}


def job_figures(body: Mapping[str, Any]) -> JobFigures:
    """Read the figures from a job's decoded body. A status that another version wrote may lack any part."""
    status = _dict(body.get("status"))
    counters = _dict(status.get("counters"))
    notes = status.get("diagnoses")
    return JobFigures(
        uid=str(_dict(body.get("metadata")).get("uid", "")),
        state=str(status.get("state") or "Pending"),
        restarts=_whole(counters.get("restarts")),
        replacements=_whole(counters.get("replacements")),
        diagnoses=tuple(
            (
                str(note.get("id")),
                str(note.get("what", "")).partition(",")[0],
                str(note.get("cause") or "Unknown"),
                str(note.get("errorClass", "")),
            )
            for note in (notes if isinstance(notes, list) else [])
            if isinstance(note, dict)
        ),
        runs_out=tuple(
            (str(forecast["resource"]), at)
            for note in (notes if isinstance(notes, list) else [])
            if (forecast := _dict(_dict(note).get("forecast"))).get("resource") in get_args(Kind)
            and (at := _unix(forecast.get("at")))
        ),
    )


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that the parts of a leading operator return when they are asked."""

    etcd_healthy: bool
    bus_healthy: bool
    gateways: int
    gateways_known: int
    gateway_streams: int
    agents: int
    refused_reports: Mapping[tuple[str, str, str], int]  # by namespace, job and reason
    queue_depth: int
    fenced_nodes: int
    bus: BusState = BusState()
    certificates: Mapping[str, float] = {}  # when each expires, unix seconds, by its Secret
    first_job_expiry: float | None = None  # when the first certificate of a job's agents expires, unix seconds
    anomaly_service: tuple[bool, int] | None = None  # whether it answers, and questions without an answer; None: none


class Metrics:
    """The metrics of one process. /metrics serves the text of ``registry``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = False
        # Of the certificates of the operator's own ports, each as ``Readings.certificates``.
        self.port_expiries: list[Mapping[str, float]] = []
        self.readings: Callable[[], Readings] | None = None  # while this process leads
        self._jobs: dict[JobName, JobFigures] = {}
        self._iterations: dict[JobName, tuple[float | None, float | None]] = {}  # seconds: now, healthy
        self._checkpoints: dict[JobName, tuple[int, float, float]] = {}  # see ``checkpoint``
        self._pools: dict[str, tuple[int, int]] = {}  # ready, size
        self._incidents: Tally[tuple[str, str, str]] = Tally()
        self._seen: dict[str, set[str]] = {}  # job uid → diagnosis ids
        self._reconciles = Histogram(
            "falcon_reconcile_seconds",
            "Duration of one look at an object.",
            ["kind"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._evictions = Counter(
            "falcon_evictions", "Evictions that the API server asked about.", ["answer"], registry=self.registry
        )
        self._errors = Counter(
            "falcon_reconcile_errors", "Looks that failed and are repeated.", ["kind"], registry=self.registry
        )
        self._unshown = Counter(
            "falcon_unshown_failures",
            "Failures of looks that neither a status nor an Event could show.",
            ["kind"],
            registry=self.registry,
        )
        self._report_age = Histogram(
            "falcon_report_age_seconds",
            "From a report's receipt at its gateway to the end of the first look that uses it.",
            buckets=_AGES,
            registry=self.registry,
        )
        self._events = Counter(
            "falcon_events", "Turning points of jobs, by the reason of their Event.", ["reason"], registry=self.registry
        )
        self._standstill = Counter(
            "falcon_standstill_seconds",
            "How long jobs stood still, by the cause and the class of the error.",
            ["cause", "class"],
            registry=self.registry,
        )
        self._restores = Histogram(
            "falcon_restore_seconds",
            "How long the slowest rank of a job took to load its checkpoint after a restart.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._interruptions = Counter(
            "falcon_watch_interruptions",
            "Watches of pods and nodes that began again, by resource and reason.",
            ["resource", "reason"],
            registry=self.registry,
        )
        self.registry.register(self)

    # -- what happens ------------------------------------------------------------------------------------------------

    def event(self, reason: str) -> None:
        """Count a turning point of some job (the Event's reason)."""
        self._events.labels(reason).inc()

    def stood_still(self, cause: str, error_class: str, seconds: float) -> None:
        """Count the standstill of a failure, a hang or a pause that is over."""
        self._standstill.labels(cause, error_class).inc(seconds)

    def watch_interrupted(self, resource: str, reason: str) -> None:
        """Count a watch that begins again before its time."""
        self._interruptions.labels(resource, reason).inc()

    def reconciled(self, kind: str, seconds: float, success: bool) -> None:
        self._reconciles.labels(kind).observe(seconds)
        if not success:
            self._errors.labels(kind).inc()

    def failure_unshown(self, kind: str) -> None:
        """Count a failure that neither a status nor an Event could show."""
        self._unshown.labels(kind).inc()

    def job(self, name: JobName, figures: JobFigures | None) -> None:
        """Take over the figures of a job whose status changed; None: the job is gone."""
        if figures is None:
            # A label set that is kept after its job would be exported for ever.
            gone = self._jobs.pop(name, None)
            self._iterations.pop(name, None)
            self._checkpoints.pop(name, None)
            self._seen.pop(gone.uid if gone else "", None)
            return
        self._jobs[name] = figures
        # A status repeats its diagnoses at each write; a counter counts each of them once.
        seen = self._seen.setdefault(figures.uid, set())
        for id_, *labels in figures.diagnoses:
            if id_ not in seen:
                seen.add(id_)
                self._incidents[(labels[0], labels[1], labels[2])] += 1

    def iterations(self, name: JobName, current_seconds: float | None, healthy_seconds: float | None) -> None:
        """Take the job's iteration times as this look has found them, in seconds; None: not known."""
        self._iterations[name] = (current_seconds, healthy_seconds)

    def checkpoint(self, name: JobName, newest: tuple[int, float, float] | None) -> None:
        """Take the newest step that all ranks of a job hold in memory; None: there is none.

        With the step: when it was saved, unix seconds, and for how long training waited, seconds (0: not known).
        """
        if newest is None:
            self._checkpoints.pop(name, None)
        else:
            self._checkpoints[name] = newest

    def eviction(self, answer: str) -> None:
        """Count an answer to the API server: ``runtime.evictions.Answer``."""
        self._evictions.labels(answer).inc()

    def restored(self, seconds: float) -> None:
        """Count how long the slowest rank of a job took to load its checkpoint after a restart."""
        self._restores.observe(seconds)

    def reports_used(self, ages_seconds: Iterable[float]) -> None:
        """Count the reports that a look at a job was the first to use, by their age at its end."""
        for seconds in ages_seconds:
            self._report_age.observe(seconds)

    def pool(self, name: str, ready: int | None, size: int = 0) -> None:
        """Take over the figures of a pool whose status changed; None: the pool is gone."""
        if ready is None:
            self._pools.pop(name, None)
        else:
            self._pools[name] = (ready, size)

    # -- what is read at a scrape ------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. prometheus_client calls this method at each scrape."""
        yield GaugeMetricFamily("falcon_leading", "1 where this replica leads.", value=float(self.leading))
        yield from self._of_jobs()
        yield from self._of_checkpoints()
        yield from self._of_pools()
        incidents = CounterMetricFamily(
            "falcon_incidents", "Diagnoses, by kind, cause and class of the error.", labels=["kind", "cause", "class"]
        )
        for labels, count in self._incidents.items():
            incidents.add_metric(list(labels), count)
        yield incidents
        # A standby has no bus and no queue: zeros would look like an outage.
        if self.readings is not None:
            yield from _of_readings(self.readings())

    def _of_jobs(self) -> Iterator[Metric]:
        states = GaugeMetricFamily("falcon_jobs", "TrainingJobs, by state.", labels=["state"])
        for state, count in sorted(Tally(job.state for job in self._jobs.values()).items()):
            states.add_metric([state], count)
        yield states
        labels = ["namespace", "job"]
        current = GaugeMetricFamily("falcon_job_iteration_seconds", "Iteration time now.", labels=labels)
        healthy = GaugeMetricFamily(
            "falcon_job_healthy_iteration_seconds", "Iteration time while healthy.", labels=labels
        )
        restarts = CounterMetricFamily("falcon_job_restarts", "Restarts of the processes.", labels=labels)
        replacements = CounterMetricFamily("falcon_job_replacements", "Nodes replaced.", labels=labels)
        runs_out = GaugeMetricFamily(
            "falcon_job_runs_out_timestamp_seconds",
            "When a resource of the job's ranks reaches its limit if it grows on, unix time.",
            labels=[*labels, "resource"],
        )
        anomalies = GaugeMetricFamily(
            "falcon_job_anomalies", "1 while the job's status has an anomaly of this cause.", labels=[*labels, "cause"]
        )
        for name, job in self._jobs.items():
            for cause in sorted(job.anomalies):
                anomalies.add_metric([*name, cause], 1.0)
            now, well = self._iterations.get(name, (None, None))
            if now is not None:
                current.add_metric(name, now)
            if well is not None:
                healthy.add_metric(name, well)
            for resource, at in dict(job.runs_out).items():
                runs_out.add_metric([*name, resource], at)
            restarts.add_metric(name, job.restarts)
            replacements.add_metric(name, job.replacements)
        yield from (current, healthy, restarts, replacements, runs_out, anomalies)

    def _of_checkpoints(self) -> Iterator[Metric]:
        labels = ["namespace", "job"]
        step = GaugeMetricFamily(
            "falcon_job_checkpoint_step", "The newest step that all ranks hold in memory.", labels=labels
        )
        saved = GaugeMetricFamily(
            "falcon_job_checkpoint_saved_timestamp_seconds", "When that was saved, unix time.", labels=labels
        )
        save = GaugeMetricFamily(
            "falcon_job_checkpoint_save_seconds", "How long training waited for that save.", labels=labels
        )
        for name, (newest, saved_unix, waited) in self._checkpoints.items():
            step.add_metric(name, newest)
            saved.add_metric(name, saved_unix)
            if waited:
                save.add_metric(name, waited)
        yield from (step, saved, save)

    def _of_pools(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily("falcon_pool_ready_spares", "Spares that are ready and free.", labels=["pool"])
        size = GaugeMetricFamily("falcon_pool_size", "Spares that shall be kept free.", labels=["pool"])
        for name, (count, wanted) in self._pools.items():
            ready.add_metric([name], count)
            size.add_metric([name], wanted)
        yield from (ready, size)


def _of_readings(now: Readings) -> Iterator[Metric]:
    expiries = GaugeMetricFamily(
        "falcon_certificate_expires_timestamp_seconds", "When a certificate expires, unix time.", labels=["secret"]
    )
    for secret, at in sorted(now.certificates.items()):
        expiries.add_metric([secret], at)
    yield expiries
    if now.first_job_expiry is not None:
        yield GaugeMetricFamily(
            "falcon_job_certificates_expire_timestamp_seconds",
            "When the first certificate of a job's agents expires, unix time.",
            value=now.first_job_expiry,
        )
    yield GaugeMetricFamily(
        "falcon_etcd_session_healthy", "1 while heartbeats come back through the watch.", value=float(now.etcd_healthy)
    )
    yield GaugeMetricFamily(
        "falcon_bus_healthy", "1 while etcd or all gateways whose pods are ready answer.", value=now.bus_healthy
    )
    yield GaugeMetricFamily("falcon_gateways", "Gateways that are heard.", value=now.gateways)
    yield GaugeMetricFamily(
        "falcon_gateways_known", "Gateways whose streams have to work: their pods are ready.", value=now.gateways_known
    )
    yield GaugeMetricFamily("falcon_gateways_streaming", "Gateways whose streams work.", value=now.gateway_streams)
    yield GaugeMetricFamily("falcon_agents", "Agents that are alive.", value=now.agents)
    refused = CounterMetricFamily(
        "falcon_reports_refused", "Reports that could not be read.", labels=["namespace", "job", "reason"]
    )
    for labels, count in sorted(now.refused_reports.items()):
        refused.add_metric(labels, count)
    yield refused
    yield GaugeMetricFamily("falcon_queue_depth", "Objects that wait for their turn.", value=now.queue_depth)
    yield GaugeMetricFamily("falcon_fenced_nodes", "Nodes with Falcon's fence.", value=now.fenced_nodes)
    yield from _of_bus(now.bus)
    if now.anomaly_service is not None:
        answers, failures = now.anomaly_service
        yield GaugeMetricFamily(
            "falcon_anomaly_service_answers", "1 while the anomaly service answers.", value=float(answers)
        )
        yield CounterMetricFamily(
            "falcon_anomaly_service_failures", "Questions to it without an answer that can be read.", value=failures
        )


def _of_bus(bus: BusState) -> Iterator[Metric]:
    yield GaugeMetricFamily("falcon_bus_full", "1 while etcd refuses writes: alarm NOSPACE.", value=float(bus.full))
    yield GaugeMetricFamily(
        "falcon_bus_corrupt", "1 while etcd's members disagree: alarm CORRUPT.", value=float(bus.corrupt)
    )
    yield CounterMetricFamily("falcon_bus_healed", "How often a full etcd got room again.", value=bus.healed)
    yield CounterMetricFamily(
        "falcon_bus_written_bytes", "Keys and values that the leader saw written.", value=bus.written_bytes
    )
    labels = ["endpoint"]
    size = GaugeMetricFamily("falcon_bus_database_bytes", "Size of a member's database file.", labels=labels)
    used = GaugeMetricFamily("falcon_bus_database_used_bytes", "What of it is in use.", labels=labels)
    quota = GaugeMetricFamily("falcon_bus_quota_bytes", "Size at which the member refuses writes.", labels=labels)
    for database in bus.databases:
        size.add_metric([database.endpoint], database.size_bytes)
        used.add_metric([database.endpoint], database.in_use_bytes)
        quota.add_metric([database.endpoint], database.quota_bytes)
    yield from (size, used, quota)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _unix(value: Any) -> float:
    """Return an RFC 3339 time as unix seconds; 0 for anything else."""
    try:
        return unix_seconds(value) if isinstance(value, str) else 0.0
    except ValueError:
        return 0.0


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
