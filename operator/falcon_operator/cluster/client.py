"""Implement ``ports.Kube`` on a real API server.

Answers about jobs, runs and pools are kept until an event says that they changed (``read_cache``). Pods and nodes are
read from mirrors in memory (``inventory``), which also take over the answers to the operator's own writes.

A stale answer does no harm. A status is written under the resourceVersion that was read, a pod is created under a name
that derives from the run, and a pod is deleted under its uid. A member's pod that the mirror lacks is really gone:
nothing is read before the first list, which is newer than this leadership; a pod that this operator made stands in the
mirror before the call returns, and stays there until the watch or a later list shows that it has gone. A pod that the
mirror still has, though it is gone, is only missed a little later.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec
import structlog

from falcon_operator.api.common import API_VERSION, LABEL_ROLE, ROLE_TRAINER, TAINT_FENCED, TAINT_SPARE
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobStatus
from falcon_operator.api.trainingrun import TrainingRun, TrainingRunSpec
from falcon_operator.api.warmpool import WarmPool, WarmPoolStatus
from falcon_operator.base import spare_annotations as spares
from falcon_operator.base.ports import Clock, Conflict, Manifest, NamespaceRules, NodeView, NotFound, Occupant, PodView
from falcon_operator.cluster import nodes, owned, pods, recorder
from falcon_operator.cluster.cache import views
from falcon_operator.cluster.cache.mirror import Item
from falcon_operator.cluster.cache.read_cache import ReadCache
from falcon_operator.cluster.cache.reflector import Interruption, uncounted
from falcon_operator.cluster.daemon_sets import DaemonSets
from falcon_operator.cluster.inventory import Inventory, Unsynced
from falcon_operator.cluster.job_secrets import JobSecrets
from falcon_operator.cluster.namespace_rules import read_rules
from falcon_operator.cluster.nodes import Breaker, Node, Taint, with_taint, without_taint
from falcon_operator.cluster.transport import MERGE_PATCH, AlreadyExists, Transport, path_of
from falcon_operator.intent.model.run import build_run, read_run

JOBS, RUNS, POOLS = "trainingjobs", "trainingruns", "warmpools"
KEPT_SECONDS = 600.0  # the longest that an answer is trusted without an event
BUDGET_SUFFIX = "-falcon"  # of the PodDisruptionBudgets that earlier releases have made
OCCUPIED_SECONDS = 10.0  # the same for who is on a node: no event tells of other workloads' pods
RULES_SECONDS = 10.0  # the same for a namespace's rules, which are read for pods that are made
PAGE = "500"
TAINT_ATTEMPTS = 5
log = structlog.get_logger(__name__)


class KubeClient:
    """All calls to the API server. Nothing about pods and nodes can be read before ``watch`` runs and has listed them.

    ``instance`` names this operator in Events; ``namespace`` is its own; empty ``watch_namespaces`` means all;
    ``spare_annotations`` come and go with the taint of spares; ``on_interruption`` as for a ``Reflector``.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        breaker: Breaker,
        *,
        instance: str,
        namespace: str,
        watch_namespaces: Sequence[str] = (),
        spare_annotations: Mapping[str, str] = spares.NONE,
        on_interruption: Callable[[str, Interruption], None] = uncounted,
    ) -> None:
        self._http = transport
        self._clock = clock
        self._breaker = breaker
        self._instance = instance
        self._namespace = namespace
        self._namespaces = tuple(watch_namespaces) or ("",)
        # The operator's own namespace is always watched: its burn-in pods and the gateways are there.
        served = tuple(dict.fromkeys((*watch_namespaces, namespace))) if watch_namespaces else ()
        self._spare_annotations = spare_annotations
        self._node_item = functools.partial(nodes.item, annotations=spare_annotations)
        self._inventory = Inventory(transport, served, on_interruption, self._node_item)
        self._jobs: ReadCache[tuple[str, str], TrainingJob | None] = ReadCache(clock, KEPT_SECONDS, _version)
        self._runs: ReadCache[tuple[str, str], TrainingRun | None] = ReadCache(clock, KEPT_SECONDS, _version)
        self._pools: ReadCache[str, list[WarmPool]] = ReadCache(clock, KEPT_SECONDS)
        self._occupants: ReadCache[str, list[Occupant]] = ReadCache(clock, OCCUPIED_SECONDS)
        self._daemon_sets = DaemonSets(transport, clock)
        self._rules: ReadCache[str, NamespaceRules] = ReadCache(clock, RULES_SECONDS)
        self._secrets = JobSecrets(transport)
        self._tainting = asyncio.Lock()

    # -- what changes ------------------------------------------------------------------------------------------------

    async def watch(self, on_pod: Callable[[PodView], None], on_node: Callable[[str], None]) -> None:
        """Keep pods and nodes current until cancelled; call ``on_pod`` and ``on_node`` for each change."""

        def pod_changed(pod: PodView) -> None:
            self._occupants.drop(pod.node)
            on_pod(pod)

        await self._inventory.run(pod_changed, on_node)

    async def synced(self) -> None:
        """Wait until ``watch`` has listed pods and nodes."""
        await self._inventory.synced()

    def job_changed(self, namespace: str, name: str, version: int | None) -> None:
        """Void what is known of a job before this version; None: everything."""
        self._jobs.changed((namespace, name), version)

    def run_changed(self, namespace: str, name: str, version: int | None) -> None:
        """Void what is known of a run before this version; None: everything."""
        self._runs.changed((namespace, name), version)

    def pool_changed(self) -> None:
        self._pools.drop("")

    # -- jobs --------------------------------------------------------------------------------------------------------

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
        # Should the call fail, the server may have stored it all the same, so the earlier answer is void.
        state = self._jobs.drop((meta.namespace, meta.name))
        data = await self._http.call("PUT", path, body=views.with_status("TrainingJob", job, status))
        stored = views.custom(data, TrainingJob)
        self._jobs.keep((meta.namespace, meta.name), stored, state)
        return stored

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
        name = (meta.namespace, meta.name)
        manifest = build_run(job, spec, before.metadata.resource_version if before else "")
        # Void the cached run before the call: whatever becomes of the write, the answer before it may be wrong now.
        state = self._runs.drop(name)
        try:
            if before is None:
                path = path_of(API_VERSION, RUNS, meta.namespace)
                data = await self._http.call("POST", path, body=manifest, lane="Intent")
            else:
                data = await self._http.call("PUT", path_of(API_VERSION, RUNS, *name), body=manifest, lane="Intent")
        except (Conflict, NotFound):
            self._jobs.drop(name)  # the run of a job that was deleted while no watch reported it goes with the job
            raise
        stored = read_run(msgspec.json.decode(data))
        # The next look reads this answer instead of asking the server again.
        self._runs.keep(name, stored, state)
        return stored

    async def delete_run(self, run: TrainingRun) -> None:
        meta = run.metadata
        try:
            await self._delete(path_of(API_VERSION, RUNS, meta.namespace, meta.name), meta.uid)
        finally:
            self._runs.drop((meta.namespace, meta.name))

    # -- pods --------------------------------------------------------------------------------------------------------

    async def list_pods(self, namespace: str, labels: dict[str, str]) -> list[PodView]:
        return self._inventory.pods_of(namespace).select(namespace, labels)

    def list_trainers(self) -> dict[str, list[Occupant]]:
        """Return the training pods that have not ended, by node; from memory."""
        found: dict[str, list[Occupant]] = {}
        for pod in self._inventory.all_pods():
            role = pod.labels.get(LABEL_ROLE, "")
            # A pod that has ended keeps its node's name, and uses nothing there.
            if pod.node and role == ROLE_TRAINER and pod.phase not in ("Succeeded", "Failed"):
                found.setdefault(pod.node, []).append(Occupant(namespace=pod.namespace, name=pod.name, role=role))
        return found

    async def list_occupants(self, node: str, *, fresh: bool = False) -> list[Occupant]:
        """Return the node's pods that have not ended. The API server has an index by node, so it reads no others."""
        if fresh:
            self._occupants.drop(node)

        async def read() -> list[Occupant]:
            fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
            # resourceVersion 0: from the server's memory; without it an older server reads all pods of the cluster
            query = {"fieldSelector": fields, "resourceVersion": "0"}
            found = pods.occupants(await self._http.call("GET", path_of("v1", "pods"), query=query), self._namespace)
            return list(await asyncio.gather(*map(self._daemon_sets.with_true_owner, found)))

        return await self._occupants.get(node, read)

    async def create_pod(self, manifest: Manifest) -> PodView:
        meta = manifest["metadata"]
        namespace = str(meta["namespace"])
        try:
            made = pods.item(await self._http.call("POST", path_of("v1", "pods", namespace), body=manifest))
        except AlreadyExists:
            made = pods.item(await self._http.call("GET", path_of("v1", "pods", namespace, str(meta["name"]))))
            if not pods.is_wanted(made.view, meta):
                raise owned.foreign(manifest, "it has other labels or another owner") from None
        self._inventory.pods_of(namespace).written(made)
        return made.view

    async def dry_run_pod(self, manifest: Manifest) -> None:
        path = path_of("v1", "pods", str(manifest["metadata"]["namespace"]))
        try:
            # Strict: the server refuses a misspelt field of the template by name; else it would drop the field silently
            await self._http.call("POST", path, query={"dryRun": "All", "fieldValidation": "Strict"}, body=manifest)
        except AlreadyExists:
            return

    async def namespace_rules(self, namespace: str) -> NamespaceRules:
        return await self._rules.get(namespace, lambda: read_rules(self._http, namespace))

    async def delete_pod(self, pod: PodView, grace_seconds: int | None = None) -> None:
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        data = await self._delete(path_of("v1", "pods", pod.namespace, pod.name), pod.uid, options)
        if data is not None:
            left = pods.item(data)
            going = msgspec.structs.replace(left.view, deleting=True)
            self._inventory.pods_of(pod.namespace).ending(left._replace(view=going))

    # -- what pods need ----------------------------------------------------------------------------------------------

    async def apply_service(self, manifest: Manifest) -> None:
        await owned.ensure(self._http, "v1", "services", manifest)

    async def delete_budget(self, job: TrainingJob) -> None:
        meta = job.metadata
        await owned.remove(self._http, "policy/v1", "poddisruptionbudgets", meta.namespace, meta.name, BUDGET_SUFFIX)

    async def apply_secret(self, manifest: Manifest) -> None:
        await self._secrets.write(manifest)

    # -- nodes -------------------------------------------------------------------------------------------------------

    async def nodes(self) -> Mapping[str, NodeView]:
        return self._inventory.nodes_by_name()

    def taints(self, key: str) -> list[str]:
        """Return the values of this taint, of each known node that has it; none before nodes have been listed."""
        with contextlib.suppress(Unsynced):
            known = (node.view.taints for node in self._inventory.nodes.views())
            return [taints[key] for taints in known if key in taints]
        return []

    async def taint_node(self, node: str, key: str, value: str) -> None:
        """Set the taint on the node. Do nothing when the node no longer exists: no pod will be placed there.

        With the taint of a spare its annotations are set, in the same write.
        Raises Rejected if the circuit breaker refuses a fence (``TAINT_FENCED``), Conflict if the taints keep changing.
        """
        async with self._tainting:  # two fences at once must not both pass the breaker
            # Kubelets and controllers write to the same node. After a conflict its taints are read again.
            for _ in range(TAINT_ATTEMPTS):
                try:
                    found = await self._node(node)
                except NotFound:
                    self._inventory.nodes.forget(("", node))
                    return
                known = found.view.taints
                taints = with_taint(known, key, value, self._clock.unix())
                annotations = _annotations_due(found, key, self._spare_annotations)
                if taints is None and not annotations:
                    return
                if key == TAINT_FENCED and not any(taint.key == key for taint in known):
                    self._breaker.check(node, self._inventory.nodes.views(), self._clock.unix())
                if await self._write_taints(found, taints, annotations):
                    log.info("node tainted", node=node, key=key, value=value)
                    return
        raise Conflict(f"node {node}: its taints changed {TAINT_ATTEMPTS} times in a row")

    async def untaint_node(self, node: str, key: str, value: str | None = None) -> None:
        """Remove the taint from the node; with that of a spare, the annotations that were set with it.

        A taint of another value than ``value``, where that is given, stays, and so do its annotations.
        """
        # Taints are one list that others write too: it is written only over the version that was read.
        for _ in range(TAINT_ATTEMPTS):
            try:
                found = await self._node(node)
            except NotFound:
                return
            # The caller has seen an earlier state of the node: it may be another pool's spare by now.
            if value is not None and found.view.view.taints.get(key, value) != value:
                return
            taints = without_taint(found.view.taints, key)
            annotations = _annotations_due(found, key, spares.NONE)
            if taints is None and not annotations:
                return
            if await self._write_taints(found, taints, annotations):
                log.info("node untainted", node=node, key=key)
                return
        raise Conflict(f"node {node}: its taints changed {TAINT_ATTEMPTS} times in a row")

    async def _node(self, name: str) -> Item[Node]:
        return self._node_item(await self._http.call("GET", path_of("v1", "nodes", name=name)))

    async def _write_taints(
        self, node: Item[Node], taints: list[Taint] | None, annotations: Mapping[str, str | None]
    ) -> bool:
        """Write the node's taints (None: as they are) and change these annotations (None: removed).

        Return False if another client changed the node meanwhile.
        """
        body: Manifest = {"metadata": {"resourceVersion": str(node.version), "annotations": dict(annotations)}}
        if taints is not None:
            body["spec"] = {"taints": msgspec.to_builtins(taints) or None}
        path = path_of("v1", "nodes", name=node.view.view.name)
        try:
            data = await self._http.call("PATCH", path, body=body, content_type=MERGE_PATCH)
        except Conflict:
            return False
        self._inventory.nodes.written(self._node_item(data))
        return True

    # -- pools -------------------------------------------------------------------------------------------------------

    async def list_pools(self) -> list[WarmPool]:
        """Return the pools that decode. What is wrong with any other pool stands in that pool's own conditions."""

        async def read() -> list[WarmPool]:
            return [pool async for raw in self._all(POOLS) if (pool := _readable_pool(raw)) is not None]

        return await self._pools.get("", read)

    async def pool_names(self) -> frozenset[str]:
        """Return the names of all pools, also of those that do not decode. Never from a cache."""
        return frozenset([views.sketch(msgspec.json.decode(raw)).name async for raw in self._all(POOLS)])

    async def get_pool(self, name: str) -> WarmPool | None:
        """Return the pool, or None; never from a cache. Raises ``views.Unreadable`` when the pool does not decode."""
        data = await self._find(path_of(API_VERSION, POOLS, name=name))
        return None if data is None else views.custom(data, WarmPool)

    async def write_pool_status(self, pool: WarmPool, status: WarmPoolStatus) -> WarmPool:
        path = path_of(API_VERSION, POOLS, name=pool.metadata.name, subresource="status")
        try:
            body = views.with_status("WarmPool", pool, status)
            return views.custom(await self._http.call("PUT", path, body=body), WarmPool)
        finally:
            self._pools.drop("")

    # -- shared ------------------------------------------------------------------------------------------------------

    async def record_event(self, regarding: TrainingJob | WarmPool, type_: str, reason: str, note: str) -> bool:
        event = recorder.build_event(regarding, type_, reason, note, instance=self._instance, now=self._clock.unix())
        return await recorder.record(self._http, event)

    async def report_unreadable(self, kind: str, error: views.Unreadable) -> None:
        """Write into the object's own condition that it cannot be decoded; change nothing else of the object."""
        plural = JOBS if kind == "TrainingJob" else POOLS
        path = path_of(API_VERSION, plural, error.metadata.namespace, error.metadata.name)
        raw = msgspec.json.decode(await self._http.call("GET", path))
        if views.mark_unreadable(raw, error.problem, self._clock.unix()):
            await self._http.call("PUT", f"{path}/status", body=raw)

    async def _find(self, path: str) -> bytes | None:
        try:
            return await self._http.call("GET", path)
        except NotFound:
            return None

    async def _delete(self, path: str, uid: str, options: Manifest | None = None) -> bytes | None:
        """Delete the object of this uid and return the server's answer.

        Do nothing and return None when the object no longer exists or another object has its name.
        """
        with contextlib.suppress(NotFound, Conflict):
            return await self._http.call("DELETE", path, body={"preconditions": {"uid": uid}, **(options or {})})
        return None

    async def _all(self, plural: str) -> AsyncIterator[msgspec.Raw]:
        for namespace in self._namespaces if plural == JOBS else ("",):
            path, token = path_of(API_VERSION, plural, namespace), ""
            while True:
                query = {"limit": PAGE, **({"continue": token} if token else {})}
                # In pages: one answer with all jobs of a large cluster would be held in memory as a whole, here and at
                # the server.
                page = views.page(await self._http.call("GET", path, query=query))
                for raw in page.items:
                    yield raw
                token = page.metadata.continue_
                if not token:
                    break


def _annotations_due(node: Item[Node], taint: str, wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes of annotations that go with a change of this taint."""
    return spares.changes(node.view.view.annotations, wanted) if taint == TAINT_SPARE else {}


def _version(answer: TrainingJob | TrainingRun | None) -> int:
    return 0 if answer is None else int(answer.metadata.resource_version or 0)


def _readable_pool(raw: msgspec.Raw) -> WarmPool | None:
    try:
        return views.custom(raw, WarmPool)
    except views.Unreadable as error:
        log.warning("unreadable", kind=POOLS, object=error.name, error=str(error))
        return None
