"""``ports.Kube`` on a real API server.

Answers about a job and its pods are kept until an event says that they changed (``read_cache``). Nodes are held in a
cache that events keep current. A stale answer does no harm: a status is written under the resourceVersion that was
read, a pod is created under a name that derives from the status, and a pod is deleted under its uid.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import structlog

from falcon_operator.api import (
    API_VERSION,
    LABEL_JOB_UID,
    TAINT_FENCED,
    TrainingJob,
    TrainingJobStatus,
    TrainingRun,
    TrainingRunSpec,
    WarmPool,
    WarmPoolStatus,
)
from falcon_operator.clock import Clock
from falcon_operator.cluster import recorder, views
from falcon_operator.cluster.nodes import Breaker, NodeCache, with_taint, without_taint
from falcon_operator.cluster.read_cache import ReadCache
from falcon_operator.cluster.transport import (
    APPLY_PATCH,
    FIELD_MANAGER,
    MERGE_PATCH,
    AlreadyExists,
    Transport,
    path_of,
)
from falcon_operator.intent.run import build_run, read_run
from falcon_operator.ports import Conflict, Manifest, NodeView, NotFound, Occupant, PodView, Rejected

JOBS, RUNS, POOLS = "trainingjobs", "trainingruns", "warmpools"
KEPT_SECONDS = 10.0  # the longest that an answer is trusted without an event
PAGE = "500"
TAINT_ATTEMPTS = 5
log = structlog.get_logger(__name__)


class KubeClient:
    """All calls to the API server. ``instance`` names this operator in Events; empty ``watch_namespaces`` means all."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        breaker: Breaker,
        *,
        instance: str,
        watch_namespaces: Sequence[str] = (),
    ) -> None:
        self._http = transport
        self._clock = clock
        self._breaker = breaker
        self._instance = instance
        self._namespaces = tuple(watch_namespaces) or ("",)
        self._jobs: ReadCache[tuple[str, str], TrainingJob | None] = ReadCache(clock, KEPT_SECONDS)
        self._runs: ReadCache[tuple[str, str], TrainingRun | None] = ReadCache(clock, KEPT_SECONDS)
        self._pods: ReadCache[str, list[PodView]] = ReadCache(clock, KEPT_SECONDS)
        self._pools: ReadCache[str, list[WarmPool]] = ReadCache(clock, KEPT_SECONDS)
        self._occupants: ReadCache[str, list[Occupant]] = ReadCache(clock, KEPT_SECONDS)
        self._nodes = NodeCache()
        self._listing_nodes = asyncio.Lock()
        self._tainting = asyncio.Lock()

    # -- what events change ------------------------------------------------------------------------------------------

    def job_changed(self, namespace: str, name: str) -> None:
        self._jobs.drop((namespace, name))

    def run_changed(self, namespace: str, name: str) -> None:
        self._runs.drop((namespace, name))

    def pod_changed(self, job_uid: str, node: str) -> None:
        self._pods.drop(job_uid)
        self._occupants.drop(node)

    def pool_changed(self) -> None:
        self._pools.drop("")

    def node_changed(self, body: Any, *, deleted: bool) -> bool:
        """Take over a node's change; return whether its view changed (heartbeats, most of the changes, do not show)."""
        return self._nodes.event(views.node_from_body(body), deleted=deleted)

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def list_jobs(self) -> list[TrainingJob]:
        """Return the jobs that decode. What is wrong with any other job stands in that job's own conditions."""
        return [job async for job in self._readable(JOBS, TrainingJob)]

    async def sketch_jobs(self) -> list[views.JobSketch]:
        """Return a sketch of every job, also of a job that does not decode. Never from a cache."""
        return [views.sketch(msgspec.json.decode(raw)) async for raw in self._all(JOBS)]

    async def get_job(self, namespace: str, name: str) -> TrainingJob | None:
        """Return the job; None if it does not exist. Raises ``views.Unreadable`` when it does not decode."""

        async def read() -> TrainingJob | None:
            data = await self._find(path_of(API_VERSION, JOBS, namespace, name))
            return None if data is None else views.custom(data, TrainingJob)

        return await self._jobs.get((namespace, name), read)

    async def write_job_status(self, job: TrainingJob, status: TrainingJobStatus) -> TrainingJob:
        meta = job.metadata
        path = path_of(API_VERSION, JOBS, meta.namespace, meta.name, "status")
        try:
            return views.custom(await self._put_status(path, "TrainingJob", job, status), TrainingJob)
        finally:
            self._jobs.drop((meta.namespace, meta.name))

    async def delete_job(self, job: TrainingJob) -> None:
        meta = job.metadata
        path = path_of(API_VERSION, JOBS, meta.namespace, meta.name)
        try:
            await self._delete(path, meta.uid, {"propagationPolicy": "Background"})
        finally:
            self._jobs.drop((meta.namespace, meta.name))

    # -- runs --------------------------------------------------------------------------------------------------------

    async def get_run(self, namespace: str, name: str) -> TrainingRun | None:
        async def read() -> TrainingRun | None:
            data = await self._find(path_of(API_VERSION, RUNS, namespace, name))
            return None if data is None else read_run(msgspec.json.decode(data))

        return await self._runs.get((namespace, name), read)

    async def write_run(self, job: TrainingJob, before: TrainingRun | None, spec: TrainingRunSpec) -> TrainingRun:
        meta = job.metadata
        manifest = build_run(job, spec, before.metadata.resource_version if before else "")
        try:
            if before is None:
                data = await self._http.call("POST", path_of(API_VERSION, RUNS, meta.namespace), body=manifest)
            else:
                path = path_of(API_VERSION, RUNS, meta.namespace, meta.name)
                data = await self._http.call("PUT", path, body=manifest)
        finally:
            self._runs.drop((meta.namespace, meta.name))
        return read_run(msgspec.json.decode(data))

    async def delete_run(self, run: TrainingRun) -> None:
        meta = run.metadata
        try:
            await self._delete(path_of(API_VERSION, RUNS, meta.namespace, meta.name), meta.uid)
        finally:
            self._runs.drop((meta.namespace, meta.name))

    # -- pods --------------------------------------------------------------------------------------------------------

    async def list_pods(self, namespace: str, labels: dict[str, str]) -> list[PodView]:
        async def read() -> list[PodView]:
            selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
            pages = self._pages(path_of("v1", "pods", namespace), {"labelSelector": selector})
            return [pod async for page in pages for pod in views.pods(page)]

        if set(labels) == {LABEL_JOB_UID}:
            return await self._pods.get(labels[LABEL_JOB_UID], read)
        return await read()

    async def list_watched_pods(self, labels: dict[str, str]) -> list[PodView]:
        """Return the pods with these labels in all namespaces whose jobs are served."""
        return [pod for namespace in self._namespaces for pod in await self.list_pods(namespace, labels)]

    async def list_occupants(self, node: str) -> list[Occupant]:
        """Return the node's pods that have not ended. The API server has an index by node, so it reads no others."""

        async def read() -> list[Occupant]:
            fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
            # resourceVersion 0: from the server's memory; without it an older server reads all pods of the cluster
            query = {"fieldSelector": fields, "resourceVersion": "0"}
            return views.occupants(await self._http.call("GET", path_of("v1", "pods"), query=query))

        return await self._occupants.get(node, read)

    async def create_pod(self, manifest: Manifest) -> PodView:
        meta = manifest["metadata"]
        namespace = str(meta["namespace"])
        try:
            return views.pod(await self._http.call("POST", path_of("v1", "pods", namespace), body=manifest))
        except AlreadyExists:
            return views.pod(await self._http.call("GET", path_of("v1", "pods", namespace, str(meta["name"]))))
        finally:
            self._pods.drop(str(meta.get("labels", {}).get(LABEL_JOB_UID, "")))

    async def dry_run_pod(self, manifest: Manifest) -> None:
        path = path_of("v1", "pods", str(manifest["metadata"]["namespace"]))
        try:
            # Strict: the server refuses a misspelt field of the template by name; else it would drop the field silently
            await self._http.call("POST", path, query={"dryRun": "All", "fieldValidation": "Strict"}, body=manifest)
        except AlreadyExists:
            return

    async def delete_pod(self, pod: PodView, grace_seconds: int | None = None) -> None:
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            await self._delete(path_of("v1", "pods", pod.namespace, pod.name), pod.uid, options)
        finally:
            self._pods.drop(pod.labels.get(LABEL_JOB_UID, ""))

    # -- what pods need ----------------------------------------------------------------------------------------------

    async def apply_service(self, manifest: Manifest) -> None:
        meta = manifest["metadata"]
        path = path_of("v1", "services", str(meta["namespace"]), str(meta["name"]))
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        await self._http.call("PATCH", path, query=query, body=manifest, content_type=APPLY_PATCH)

    async def apply_secret(self, manifest: Manifest) -> None:
        """Create or replace the Secret without reading it: the operator may write the jobs' Secrets, not read them."""
        meta = manifest["metadata"]
        try:
            await self._http.call("POST", path_of("v1", "secrets", str(meta["namespace"])), body=manifest)
        except AlreadyExists:
            path = path_of("v1", "secrets", str(meta["namespace"]), str(meta["name"]))
            await self._http.call("PUT", path, body=manifest)

    # -- nodes -------------------------------------------------------------------------------------------------------

    async def list_nodes(self) -> list[NodeView]:
        await self._fresh_nodes()
        return self._nodes.views()

    def nodes_with(self, taint: str) -> int:
        """Return how many known nodes carry the taint."""
        return sum(taint in node.taints for node in self._nodes.views())

    async def _fresh_nodes(self) -> None:
        async with self._listing_nodes:
            now = self._clock.monotonic()
            if not self._nodes.stale(now):
                return
            self._nodes.begin_listing()
            data = await self._http.call("GET", path_of("v1", "nodes"))
            self._nodes.end_listing(views.node_objects(data), now)

    async def taint_node(self, node: str, key: str, value: str) -> None:
        """Set the taint on the node. Do nothing when the node no longer exists: no pod will be placed there.

        Raises Rejected if the circuit breaker refuses a fence (``TAINT_FENCED``), Conflict if the taints keep changing.
        """
        async with self._tainting:  # two fences at once must not both pass the breaker
            for _ in range(TAINT_ATTEMPTS):
                try:
                    found = await self._node(node)
                except NotFound:
                    self._nodes.gone(node)
                    return
                taints = with_taint(found.spec.taints or [], key, value, self._clock.unix())
                if taints is None:
                    return
                if key == TAINT_FENCED and not any(taint.key == key for taint in found.spec.taints or []):
                    await self._fresh_nodes()
                    self._breaker.check(node, self._nodes.objects(), self._clock.unix())
                if await self._write_taints(found, taints):
                    log.info("node tainted", node=node, key=key, value=value)
                    return
        raise Conflict(f"node {node}: its taints changed {TAINT_ATTEMPTS} times in a row")

    async def untaint_node(self, node: str, key: str) -> None:
        for _ in range(TAINT_ATTEMPTS):
            try:
                found = await self._node(node)
            except NotFound:
                return
            taints = without_taint(found.spec.taints or [], key)
            if taints is None:
                return
            if await self._write_taints(found, taints):
                log.info("node untainted", node=node, key=key)
                return
        raise Conflict(f"node {node}: its taints changed {TAINT_ATTEMPTS} times in a row")

    async def _node(self, name: str) -> views.NodeObject:
        return views.node_object(await self._http.call("GET", path_of("v1", "nodes", name=name)))

    async def _write_taints(self, node: views.NodeObject, taints: list[views.Taint]) -> bool:
        """Write the node's taints. Return False if somebody else changed the node meanwhile."""
        body = {
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": msgspec.to_builtins(taints) or None},
        }
        path = path_of("v1", "nodes", name=node.metadata.name)
        try:
            data = await self._http.call("PATCH", path, body=body, content_type=MERGE_PATCH)
        except Conflict:
            return False
        self._nodes.event(views.node_object(data), deleted=False)
        return True

    # -- pools -------------------------------------------------------------------------------------------------------

    async def list_pools(self) -> list[WarmPool]:
        """Return the pools that decode."""

        async def read() -> list[WarmPool]:
            return [pool async for pool in self._readable(POOLS, WarmPool, clusterwide=True)]

        return await self._pools.get("", read)

    async def get_pool(self, name: str) -> WarmPool | None:
        """Return the pool, or None; never from a cache. Raises ``views.Unreadable`` when the pool does not decode."""
        data = await self._find(path_of(API_VERSION, POOLS, name=name))
        return None if data is None else views.custom(data, WarmPool)

    async def write_pool_status(self, pool: WarmPool, status: WarmPoolStatus) -> WarmPool:
        path = path_of(API_VERSION, POOLS, name=pool.metadata.name, subresource="status")
        try:
            return views.custom(await self._put_status(path, "WarmPool", pool, status), WarmPool)
        finally:
            self._pools.drop("")

    # -- shared ------------------------------------------------------------------------------------------------------

    async def record_event(self, regarding: TrainingJob | WarmPool, type_: str, reason: str, note: str) -> None:
        event = recorder.build_event(regarding, type_, reason, note, instance=self._instance, now=self._clock.unix())
        path = path_of("v1", "events", event["metadata"]["namespace"])
        try:
            try:
                await self._http.call("POST", path, body=event)
            except AlreadyExists:
                name = f"{path}/{event['metadata']['name']}"
                await self._http.call("PATCH", name, body=recorder.repeated(event), content_type=MERGE_PATCH)
        except (Conflict, NotFound, Rejected, OSError) as error:
            log.warning("event not recorded", reason=reason, note=note, error=str(error))

    async def report_unreadable(self, kind: str, error: views.Unreadable) -> None:
        """Write into the object's own condition that it cannot be decoded; change nothing else of the object."""
        plural = JOBS if kind == "TrainingJob" else POOLS
        path = path_of(API_VERSION, plural, error.metadata.namespace, error.metadata.name)
        raw = msgspec.json.decode(await self._http.call("GET", path))
        if views.mark_unreadable(raw, error.problem, self._clock.unix()):
            await self._http.call("PUT", f"{path}/status", body=raw)

    async def _put_status(
        self, path: str, kind: str, of: TrainingJob | WarmPool, status: TrainingJobStatus | WarmPoolStatus
    ) -> bytes:
        meta = of.metadata
        body = {
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {
                "name": meta.name,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                **({"namespace": meta.namespace} if meta.namespace else {}),
            },
            "spec": msgspec.to_builtins(of.spec),  # required by the schema, ignored by the server
            "status": msgspec.to_builtins(status),
        }
        return await self._http.call("PUT", path, body=body)

    async def _find(self, path: str) -> bytes | None:
        try:
            return await self._http.call("GET", path)
        except NotFound:
            return None

    async def _delete(self, path: str, uid: str, options: Manifest | None = None) -> None:
        """Delete the object of this uid. Do nothing when it no longer exists or another object has its name."""
        with contextlib.suppress(NotFound, Conflict):
            await self._http.call("DELETE", path, body={"preconditions": {"uid": uid}, **(options or {})})

    async def _readable(
        self, plural: str, kind: type[views.Custom], *, clusterwide: bool = False
    ) -> AsyncIterator[views.Custom]:
        async for raw in self._all(plural, clusterwide=clusterwide):
            try:
                found = views.custom(raw, kind)
            except views.Unreadable as error:
                log.warning("unreadable", kind=plural, object=error.name, error=str(error))
            else:
                yield found

    async def _all(self, plural: str, *, clusterwide: bool = False) -> AsyncIterator[msgspec.Raw]:
        for namespace in ("",) if clusterwide else self._namespaces:
            async for page in self._pages(path_of(API_VERSION, plural, namespace)):
                for raw in views.items(page):
                    yield raw

    async def _pages(self, path: str, query: dict[str, str] | None = None) -> AsyncIterator[bytes]:
        token = ""
        while True:
            page = {"limit": PAGE, **({"continue": token} if token else {})}
            data = await self._http.call("GET", path, query={**(query or {}), **page})
            yield data
            token = views.continue_token(data)
            if not token:
                return
