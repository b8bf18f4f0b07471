"""Answer the API server whether a pod may be evicted now, from what the API server itself has stored.

Every replica answers, whether or not it leads, and all give the same answer: the leader's intent stands in the
TrainingRun. A replica that is slow, cut off or gone admits, by its own doing or by the webhook's ``failurePolicy``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import structlog

from falcon_core.errors.judge import Judge
from falcon_core.recovery import RecoveryState
from falcon_operator.api.common import API_VERSION, LABEL_JOB
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import Clock, NodeView, NotFound, PodView
from falcon_operator.cluster import nodes, pods
from falcon_operator.cluster.cache import views
from falcon_operator.cluster.transport import Transport, path_of
from falcon_operator.intent.model.run import decode, read_run
from falcon_operator.intent.observation import evictions
from falcon_operator.intent.observation.evictions import Hold

ANSWER_SECONDS: Final = 0.8  # the API server waits for a second
NOTED_SECONDS: Final = 30.0  # a leader that works has noted the move by then
SAME_DRAIN_SECONDS: Final = 120.0  # one drain asks again sooner: an eviction after it belongs to another drain
MOST_WAITING: Final = 4096  # pods whose move has not been noted
# Unknown: it could not be judged. Unanswered: too many asked at once. Both are admitted.
Answer = Literal["Refused", "Admitted", "Unknown", "Unanswered"]
log = structlog.get_logger(__name__)


class Waiting(msgspec.Struct, frozen=True):
    """When the evictions of one pod were refused without a noted move, monotonic seconds."""

    first: float
    newest: float


class Evictions:
    """The judgement of one replica.

    ``operator_lives``: whether some operator leads, or is about to; ``count``: called with each answer.
    """

    def __init__(
        self,
        http: Transport,
        operator_lives: Callable[[], bool],
        departure_taints: tuple[str, ...],
        judge: Judge,
        clock: Clock,
        count: Callable[[Answer], None],
    ) -> None:
        self._http = http
        self._operator_lives = operator_lives
        self._taints = departure_taints
        self._judge = judge
        self._clock = clock
        self._count = count
        self._waiting: dict[str, Waiting] = {}  # by the pod's uid

    async def refusal(self, namespace: str, pod: str, *, dry_run: bool = False) -> str:
        """Return why the pod may not be evicted now; "" if it may. Never raises, and takes a second at most."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                why = await self._refusal(namespace, pod, dry_run=dry_run)
        except Exception as error:  # noqa: BLE001 - whatever keeps an eviction from being judged must not block it
            said = str(error) or type(error).__name__
            log.warning("eviction not judged, so admitted", namespace=namespace, pod=pod, error=said)
            self._count("Unknown")
            return ""
        self._count("Refused" if why else "Admitted")
        return why

    def unanswered(self) -> None:
        """Count a question that was closed because too many were asked at once."""
        self._count("Unanswered")

    async def _refusal(self, namespace: str, name: str, *, dry_run: bool) -> str:
        if not self._operator_lives():
            return ""
        pod = pods.item(await self._get("v1", "pods", namespace, name)).view
        if not evictions.may_wait(pod):
            return ""
        job, node, recovery = await asyncio.gather(
            self._job(namespace, pod), self._node(pod), self._recovery(namespace, pod)
        )
        found = evictions.hold(job, recovery(job), pod, node, self._taints, self._judge, self._clock.unix())
        return found.why if found is not None and self._still_waits(pod.uid, found, dry_run=dry_run) else ""

    def _still_waits(self, uid: str, found: Hold, *, dry_run: bool) -> bool:
        """Check whether the operator has noted the move, or may still do so."""
        if found.noted:
            self._waiting.pop(uid, None)
            return True
        now = self._clock.monotonic()
        known = self._waiting.get(uid)
        # A drain that was given up before, hours ago perhaps, has not waited for this one.
        if known is None or now - known.newest > SAME_DRAIN_SECONDS:
            known = Waiting(now, now)
        if not dry_run:
            self._waiting[uid] = msgspec.structs.replace(known, newest=now)
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return now - known.first < NOTED_SECONDS

    # -- what is stored ----------------------------------------------------------------------------------------------

    async def _get(self, api: str, plural: str, namespace: str, name: str) -> bytes:
        return await self._http.call("GET", path_of(api, plural, namespace, name))

    async def _job(self, namespace: str, pod: PodView) -> TrainingJob:
        data = await self._get(API_VERSION, "trainingjobs", namespace, pod.labels.get(LABEL_JOB, ""))
        return views.custom(data, TrainingJob)

    async def _node(self, pod: PodView) -> NodeView:
        return nodes.item(await self._get("v1", "nodes", "", pod.node)).view.view

    async def _recovery(self, namespace: str, pod: PodView) -> Callable[[TrainingJob], RecoveryState | None]:
        """Return what reads the job's stored recovery; None for a job without a run that this version can read."""
        try:
            data = await self._get(API_VERSION, "trainingruns", namespace, pod.labels.get(LABEL_JOB, ""))
        except NotFound:
            return lambda job: None
        run = read_run(msgspec.json.decode(data))

        def read(job: TrainingJob) -> RecoveryState | None:
            is_its = run.metadata.owner_uid == job.metadata.uid and not run.refusal
            return decode(job, run.spec).recovery if is_its else None

        return read
