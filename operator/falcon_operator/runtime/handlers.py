"""Turn events into keys of the queue, and void what was read before. Nothing is decided here.

kopf watches jobs, runs and pools, of which there are hundreds; ``cluster.inventory`` watches pods and nodes, of which
there are tens of thousands. Only kopf's ``on.event`` handlers are used: so kopf needs no finalizer, no annotation, no
peering, and posts no events. Events may be missed or come twice; the periodic resync and level-triggered reconciles
make up for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple, Protocol, cast

import kopf
from kubernetes.aio.client import Configuration

from falcon_operator.api.common import GROUP, LABEL_JOB, LABEL_POOL, VERSION
from falcon_operator.base.keys import Key, job_key, pool_key
from falcon_operator.base.metrics import Metrics, job_figures
from falcon_operator.base.ports import PodView
from falcon_operator.cluster.cache.views import JobSketch, run_nodes, sketch
from falcon_operator.runtime.workqueue import KeyedQueue

Body = Mapping[str, Any]


class Caches(Protocol):
    """The caches in which the Kubernetes client keeps earlier answers."""

    def job_changed(self, namespace: str, name: str, version: int | None) -> None: ...

    def run_changed(self, namespace: str, name: str, version: int | None) -> None: ...

    def pool_changed(self) -> None: ...


class Known(NamedTuple):
    """The jobs and pools that events had named at one moment."""

    jobs: Mapping[tuple[str, str], JobSketch]
    pools: frozenset[str]


class Router:
    """The way from an event to the keys that it concerns.

    The router remembers which jobs run on which nodes and name which pool. A watch of kopf's that was interrupted for
    long lists again and never reports what was deleted meanwhile. ``may_have_missed`` is set then, and ``listed`` finds
    out what is gone.
    """

    def __init__(self, queue: KeyedQueue[Key], caches: Caches, metrics: Metrics) -> None:
        self._queue = queue
        self._caches = caches
        self._metrics = metrics
        self._jobs: dict[tuple[str, str], JobSketch] = {}
        self._nodes: dict[tuple[str, str], frozenset[str]] = {}  # of each job's members
        self._pools: set[str] = set()
        self.may_have_missed = False  # a deletion: something known has been listed once more

    def job(self, body: Body, *, deleted: bool, listed: bool = False) -> None:
        """Take over a job; ``listed``: from a list, which kopf makes at its start and after each gap."""
        job = sketch(body)
        name = (job.namespace, job.name)
        # A list of known jobs means that the watch had a gap, in which a deletion may have gone unseen.
        self.may_have_missed |= listed and name in self._jobs
        if deleted:
            self._jobs.pop(name, None)
            self._nodes.pop(name, None)
        else:
            self._jobs[name] = job
        self._metrics.job(name, None if deleted else job_figures(body))
        self._caches.job_changed(*name, None if deleted else _version(body))
        self._queue.add(job_key(*name))
        if (deleted or job.over) and job.pool:
            self._queue.add(pool_key(job.pool))  # its spares may be free again

    def run(self, body: Body, *, deleted: bool) -> None:
        metadata = body.get("metadata") or {}
        name = (metadata["namespace"], metadata["name"])
        if deleted:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = run_nodes(body)
        self._caches.run_changed(*name, None if deleted else _version(body))
        self._queue.add(job_key(*name))

    def pod(self, pod: PodView) -> None:
        if LABEL_JOB in pod.labels:
            self._queue.add(job_key(pod.namespace, pod.labels[LABEL_JOB]))
        if LABEL_POOL in pod.labels:
            self._pool_concerns(pod.labels[LABEL_POOL])

    def pool(self, body: Body, *, deleted: bool, listed: bool = False) -> None:
        """Take over a pool; ``listed`` as with a job."""
        name = body["metadata"]["name"]
        # A listing of a pool that is known already means that the watch began again, and may have missed changes.
        self.may_have_missed |= listed and name in self._pools
        (self._pools.discard if deleted else self._pools.add)(name)
        spares = (body.get("status") or {}).get("spares") or []
        ready = sum(spare.get("state") == "Ready" for spare in spares)
        self._metrics.pool(name, None if deleted else ready, (body.get("spec") or {}).get("size", 0))
        self._caches.pool_changed()
        self._pool_concerns(name)

    def node(self, node: str) -> None:
        for name, nodes in self._nodes.items():
            if node in nodes:
                self._queue.add(job_key(*name), urgent=True)  # often the second witness of a lost node
        for pool in self._pools:
            self._queue.add(pool_key(pool))

    def known(self) -> Known:
        """Return the jobs and pools named so far. Call it before a listing begins, which finds what was missed."""
        self.may_have_missed = False
        return Known(dict(self._jobs), frozenset(self._pools))

    def jobs(self) -> Iterable[JobSketch]:
        """Return the jobs that events have named."""
        return self._jobs.values()

    def all_keys(self) -> set[Key]:
        """Return the keys of all jobs and pools that events have named."""
        return {*(job_key(*name) for name in self._jobs), *map(pool_key, self._pools)}

    def listed(self, before: Known, *, jobs: Set[tuple[str, str]], pools: Set[str]) -> None:
        """Forget the jobs and pools that were known before a listing, are not in it, and have not been named since."""
        for name, job in before.jobs.items():
            # An object that was replaced since the listing began is newer than the list.
            if name not in jobs and self._jobs.get(name) is job:
                del self._jobs[name]
                self._nodes.pop(name, None)
                self._metrics.job(name, None)
                self._caches.job_changed(*name, None)
                self._caches.run_changed(*name, None)
                self._queue.add(job_key(*name))
                if job.pool:
                    self._queue.add(pool_key(job.pool))
        for pool in (before.pools - pools) & self._pools:
            self._pools.discard(pool)
            self._metrics.pool(pool, None)
            self._caches.pool_changed()
            self._pool_concerns(pool)

    def _pool_concerns(self, pool: str) -> None:
        self._queue.add(pool_key(pool))
        for (namespace, name), job in self._jobs.items():
            if job.pool == pool and not job.over:
                self._queue.add(job_key(namespace, name))


def _version(body: Body) -> int | None:
    version = (body.get("metadata") or {}).get("resourceVersion")
    return int(version) if version else None


def registry_of(router: Router, configuration: Configuration) -> kopf.OperatorRegistry:
    """Return kopf's handlers and its login, which uses the operator's own configuration."""
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(configuration)

    async def on_job(event: kopf.RawEvent, **_: Any) -> None:
        kind = event["type"]
        router.job(cast(Body, event["object"]), deleted=kind == "DELETED", listed=kind is None)

    async def on_run(event: kopf.RawEvent, **_: Any) -> None:
        router.run(cast(Body, event["object"]), deleted=event["type"] == "DELETED")

    async def on_pool(event: kopf.RawEvent, **_: Any) -> None:
        kind = event["type"]
        router.pool(cast(Body, event["object"]), deleted=kind == "DELETED", listed=kind is None)

    kopf.on.login(registry=registry)(login)
    kopf.on.event(GROUP, VERSION, "trainingjobs", registry=registry)(on_job)
    kopf.on.event(GROUP, VERSION, "trainingruns", registry=registry)(on_run)
    kopf.on.event(GROUP, VERSION, "warmpools", registry=registry)(on_pool)
    return registry


async def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return the server and the credentials that the operator's own client uses.

    kopf asks again when a token has expired.
    """
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


def kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the operator has no right to watch CRDs, and needs none
    settings.peering.standalone = True
    settings.process.ultimate_exiting_timeout = None
    settings.watching.connect_timeout = 10.0
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30.0
    return settings


async def watch(
    router: Router, configuration: Configuration, namespaces: tuple[str, ...], handle_signals: Callable[[], None]
) -> None:
    """Run kopf in this event loop until cancelled; no task of kopf's is left then.

    kopf's own runner is not used: at its end it cancels every task of the process that began after it. kopf also takes
    over the process's signals; ``handle_signals`` takes them back.
    """
    tasks = await kopf.spawn_tasks(
        registry=registry_of(router, configuration),
        settings=kopf_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    handle_signals()
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        # Without its watches the operator would look alive and do nothing: let the process end and start again.
        raise RuntimeError("the watches ended by themselves")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
