"""Run the leading replica's tasks until one of them fails: certificates, bus, watches, workers, resync."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import ChainMap
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import quote

import msgspec
import structlog
from kubernetes.aio.client import Configuration

from falcon_core.wire.keys import JobKey
from falcon_core.wire.lessons import MAX_MESSAGE_BYTES
from falcon_core.wire.overview import MAX_OVERVIEW_BYTES, Overview, decode_overview
from falcon_etcd import Client
from falcon_gateway import Tls as GatewayTls
from falcon_operator.api.common import TAINT_FENCED, TAINT_SPARE
from falcon_operator.base.keys import Key, job_key, pool_key
from falcon_operator.base.metrics import Metrics, Readings
from falcon_operator.base.ports import Clock, Conflict, JobFindings, LeadershipLost, NotFound, Rejected, lost_leadership
from falcon_operator.base.settings import Settings
from falcon_operator.bus.bus import EtcdBus
from falcon_operator.bus.leader_key import Leadership
from falcon_operator.cluster.cache.views import JobSketch, Unreadable
from falcon_operator.cluster.certificates.authorities import Authorities
from falcon_operator.cluster.client import KubeClient
from falcon_operator.cluster.gateway_pods import GatewayPods
from falcon_operator.job.reconciler import JobReconciler
from falcon_operator.pool.reconciler import PoolReconciler
from falcon_operator.pool.snapshot import PoolSettings
from falcon_operator.runtime import handlers
from falcon_operator.runtime.anomaly_verdicts import AnomalyVerdicts, get, post
from falcon_operator.runtime.job_index import LiveJobs
from falcon_operator.runtime.learning.lessons import Lessons, Shelf
from falcon_operator.runtime.series_questions import SeriesQuestions, without_a_service
from falcon_operator.runtime.startup_tracker import FirstLooks
from falcon_operator.runtime.workqueue import KeyedQueue, work

SWITCH_SECONDS = 0.0005  # that a decision keeps the interpreter while the event loop waits for it; Python's own is 5 ms
TURNS = 256  # jobs and pools that are looked at at the same time: most of a turn is waiting for answers
DECISIONS = 4  # of them computing at the same time, in threads besides the event loops
PAUSE_SECONDS = 0.2  # between two looks at one object, after a long one
RESYNC_SECONDS = 30.0  # between two looks at everything, from memory
RELIST_SECONDS = 600.0  # between two lists of all jobs and pools, as long as no watch may have missed anything
RETRY_SECONDS = 2.0
CALL_SECONDS = 2.0
T = TypeVar("T")
log = structlog.get_logger(__name__)


class Leader:
    """The work of one leadership."""

    def __init__(
        self,
        settings: Settings,
        configuration: Configuration,
        kube: KubeClient,
        authorities: Authorities,
        gateway_pods: GatewayPods,
        leadership: Leadership,
        metrics: Metrics,
        clock: Clock,
        shelf: Shelf | None = None,
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._kube = kube
        self._authorities = authorities
        self._gateway_pods = gateway_pods
        self._leadership = leadership
        self._metrics = metrics
        self._clock = clock
        self._shelf = shelf  # for what the anomaly service learns; None: nothing
        self._queue: KeyedQueue[Key] = KeyedQueue(clock, pause_seconds=PAUSE_SECONDS)
        self._router = handlers.Router(self._queue, kube, metrics)
        self._first: FirstLooks | None = None  # before gateways may forget the jobs that are not announced
        self._live = LiveJobs(self._router.jobs, kube.sketch_jobs)
        self._pools = PoolReconciler(
            kube,
            PoolSettings(
                namespace=settings.namespace,
                agent_image=settings.agent_image,
                image_pull_policy=settings.agent_image_pull_policy,
                spare_annotations=settings.spare_annotations,
                error_overrides=settings.errors,
                run_as=settings.run_as,
            ),
            clock,
            self._live.unfinished,
            lambda: metrics.failure_unshown("WarmPool"),
        )

    async def run(self, handle_signals: Callable[[], None]) -> None:
        """Run until cancelled, or until a task fails for good.

        Raises an exception group with the failures; ``LeadershipLost`` may be among them.
        """
        # Threads that decide compute without a pause; a shorter interval lets the event loop answer in between.
        sys.setswitchinterval(SWITCH_SECONDS)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(DECISIONS, "decide"))
        # Nothing of the bus works without its certificates, so they come first.
        etcd_tls, gateway_tls = await self._authorities.load()
        async with Client(self._settings.etcd_endpoints, etcd_tls, CALL_SECONDS) as client:
            bus = EtcdBus(
                client,
                gateway_tls,
                self._leadership,
                self._authorities,
                self._clock,
                identity=self._settings.identity,
                on_change=self._job_reported,
                on_restored=self._look_at_all,
                live_jobs=self._live.existing,
                gateway_pods=self._gateway_pods.known,
                retention_seconds=self._settings.etcd_retention_seconds,
            )
            verdicts, questions = self._anomaly_verdicts(gateway_tls), self._series_questions(gateway_tls)
            lessons = self._lessons(gateway_tls)
            jobs = JobReconciler(
                self._kube,
                bus,
                self._settings,
                self._metrics,
                self._clock,
                verdicts.of if verdicts is not None else lambda _: JobFindings(),
                questions.of if questions is not None else without_a_service(self._clock),
                lessons.see if lessons is not None else lambda *_: None,
            )
            self._metrics.readings = lambda: self._read(bus, verdicts)
            async with asyncio.TaskGroup() as tasks:

                def begin(name: str, part: Awaitable[None]) -> None:
                    tasks.create_task(_until_it_fails(name, part), name=name)

                begin("bus", bus.run())
                begin("gateways' pods", self._gateway_pods.run())
                if verdicts is not None:
                    begin("anomaly verdicts", verdicts.run())
                if questions is not None:
                    begin("questions about series", questions.run())
                if lessons is not None:
                    begin("lessons for the anomaly service", lessons.run())
                begin("certificates", self._authorities.run())
                # Begins before the jobs are listed: both lists of a large cluster take long, and so they overlap.
                begin("pods and nodes", self._kube.watch(self._router.pod, self._router.node))
                existing = await self._insist("the API's definitions", self._relist)
                begin(
                    "watch",
                    handlers.watch(self._router, self._configuration, self._settings.watch_namespaces, handle_signals),
                )
                # No job is looked at before all pods are known: a pod that is not listed yet would count as gone.
                await self._kube.synced()
                log.info("pods and nodes listed")
                self._look_again(set())
                self._first = FirstLooks(existing)  # kopf may not have named all of them yet
                self._say_if_all_tried(bus)
                # Work starts last, when everything that a look reads is there.
                begin("resync", self._resync_always())
                begin(
                    "work",
                    work(self._queue, lambda key: self._handle(jobs, bus, key), self._observe, self._clock, TURNS),
                )

    # -- work --------------------------------------------------------------------------------------------------------

    async def _handle(self, jobs: JobReconciler, bus: EtcdBus, key: Key) -> float | None:
        try:
            if key.kind != "TrainingJob":
                return await self._pools.reconcile(key.name)
            return await jobs.reconcile(key.namespace, key.name, lambda: self._queue.is_urgent(key))
        except LeadershipLost:
            return None  # the election ends this leader, and says why once
        except Unreadable as error:
            log.warning("unreadable", kind=key.kind, namespace=key.namespace, name=key.name, error=str(error))
            await self._kube.report_unreadable(key.kind, error)
            return None
        finally:
            if self._first is not None:
                self._first.tried(key)
                self._say_if_all_tried(bus)

    def _observe(self, key: Key, seconds: float, success: bool) -> None:
        self._metrics.reconciled(key.kind, seconds, success)

    def _say_if_all_tried(self, bus: EtcdBus) -> None:
        """Say once that every job is announced that can be: when each that existed at the start was tried."""
        if self._first is not None and self._first.done:
            bus.all_announced(self._first.uids)
            self._first = None

    def _job_reported(self, key: JobKey, some_are_silent: bool) -> None:
        self._queue.add(job_key(key.namespace, key.name), urgent=some_are_silent)

    def _look_at_all(self) -> None:
        """Put all jobs and pools into the queue, since every plan has to be published again."""
        for key in self._router.all_keys():
            self._queue.add(key)

    # -- resync ------------------------------------------------------------------------------------------------------

    async def _resync_always(self) -> None:
        listed_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(RESYNC_SECONDS)
            try:
                if self._router.may_have_missed or self._clock.monotonic() - listed_at >= RELIST_SECONDS:
                    await self._relist()
                    listed_at = self._clock.monotonic()
                else:
                    self._look_again(self._router.all_keys())
            except (OSError, NotFound, Rejected) as error:
                # The next turn lists everything, since this one may have ended halfway.
                self._router.may_have_missed = True
                log.warning("resync failed", error=str(error))

    async def _relist(self) -> list[JobSketch]:
        """List all jobs and pools, forget those that are gone, and look at the others. Return the jobs."""
        before = self._router.known()
        sketches = await self._kube.sketch_jobs()
        jobs = {(job.namespace, job.name) for job in sketches}
        pools = await self._kube.pool_names()
        self._router.listed(before, jobs=jobs, pools=pools)
        self._look_again({*(job_key(*name) for name in jobs), *map(pool_key, pools)})
        return sketches

    def _look_again(self, keys: set[Key]) -> None:
        """Put the keys into the queue, spread over a while, and with them each pool whose taint is on a node.

        Such a pool may have been deleted while no operator ran.
        """
        wanted = keys | {pool_key(pool) for pool in self._kube.taints(TAINT_SPARE)}
        for index, key in enumerate(sorted(wanted)):
            self._queue.add(key, RESYNC_SECONDS / 2 * index / len(wanted))

    # -- small things ------------------------------------------------------------------------------------------------

    async def _insist(self, what: str, do: Callable[[], Awaitable[T]]) -> T:
        """Try until it works: what is missing now may come later."""
        for attempt in itertools.count():
            try:
                return await do()
            except (OSError, NotFound, Conflict, Rejected) as error:
                if attempt % 15 == 0:
                    log.warning("waiting", what=what, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError("unreachable")

    def _anomaly_verdicts(self, tls: GatewayTls) -> AnomalyVerdicts | None:
        """Return who asks the anomaly service; None where there is no such service."""
        address = next(iter(self._settings.anomaly_service), None)
        if address is None:
            return None
        return AnomalyVerdicts(
            address, tls, self._clock, lambda namespace, name: self._queue.add(job_key(namespace, name))
        )

    def _series_questions(self, tls: GatewayTls) -> SeriesQuestions | None:
        """Return who asks the anomaly service for users; None where there is no such service."""
        address = next(iter(self._settings.anomaly_service), None)
        if address is None:
            return None

        async def ask(uid: str, seconds: int) -> Overview:
            path = f"/v1/overview?job={quote(uid, safe='')}&seconds={seconds}"
            return decode_overview(await get(address, tls, path, MAX_OVERVIEW_BYTES))

        return SeriesQuestions(ask, self._clock, lambda namespace, name: self._queue.add(job_key(namespace, name)))

    def _lessons(self, tls: GatewayTls) -> Lessons | None:
        """Return who lets the anomaly service learn; None where it does not."""
        address, shelf = next(iter(self._settings.anomaly_service), None), self._shelf
        if address is None or shelf is None:
            return None

        async def ask(lesson: bytes) -> bytes:
            return await post(address, tls, "/v1/lesson", lesson, MAX_MESSAGE_BYTES)

        return Lessons(ask, shelf, self._clock)

    def _read(self, bus: EtcdBus, verdicts: AnomalyVerdicts | None) -> Readings:
        return Readings(
            etcd_healthy=bus.etcd_healthy,
            bus_healthy=bus.healthy,
            agents=bus.agents,
            refused_reports=bus.refused_reports,
            queue_depth=len(self._queue),
            fenced_nodes=len(self._kube.taints(TAINT_FENCED)),
            bus=msgspec.structs.replace(bus.state, notes=(*bus.state.notes, *self._authorities.notes)),
            gateways=len(bus.gateways),
            gateways_known=len(bus.awaited_gateways),
            gateway_streams=len(bus.streams),
            certificates=dict(ChainMap(self._authorities.expiries, *map(dict, self._metrics.port_expiries))),
            first_job_expiry=bus.first_job_expiry,
            anomaly_service=None if verdicts is None else (verdicts.answers, verdicts.failures),
        )


async def _until_it_fails(name: str, part: Awaitable[None]) -> None:
    """Wait for a part of the leader. Say at once which part failed: the others need time to end."""
    try:
        await part
    except Exception as error:
        lost = lost_leadership(error)  # from the bus or the election, whichever notices first
        log.error("the leader ends", part=name, error=str(lost or error) or type(error).__name__)
        raise
