"""Check whether the DaemonSet exists that a pod names as its owner: the maker of a pod can name any."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec
import structlog

from falcon_operator.base.ports import Clock, NotFound, Occupant, Rejected
from falcon_operator.cluster.cache import views
from falcon_operator.cluster.transport import Transport, path_of

KEPT_SECONDS = 600.0  # the longest that the API server's answer is trusted
RETRY_SECONDS = 10.0  # until a request that failed is repeated
_MOST = 4096
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_OWNER_NAME = re.compile(_NAME)
_OWNER_API = re.compile(rf"({_NAME})/v[a-z0-9]+")
log = structlog.get_logger(__name__)


class _Question(NamedTuple):
    """What the API server is asked: whether an object has this uid, or, without a uid, whether it knows the kind."""

    path: str
    uid: str


class _Answer(NamedTuple):
    exists: bool
    until: float  # monotonic clock [s]
    failed: bool  # the newest request had no answer, so ``exists`` is the last known answer, or is assumed


class _Resource(views.Fields, frozen=True, kw_only=True):
    kind: str = ""


class _Resources(views.Fields, frozen=True, kw_only=True):
    resources: list[_Resource] | None = None


_resources = msgspec.json.Decoder(_Resources)


class DaemonSets:
    """The answers of the API server about DaemonSets, each kept for ``KEPT_SECONDS``."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._http = transport
        self._clock = clock
        self._answers: dict[_Question, _Answer] = {}
        self._reading: WeakValueDictionary[_Question, asyncio.Lock] = WeakValueDictionary()

    async def with_true_owner(self, pod: Occupant) -> Occupant:
        """Return the pod, without its owner if that is a DaemonSet that does not exist.

        A pod that ends soon keeps its owner: a DaemonSet that is deleted in the background is gone before its pods.
        """
        if pod.owner != "DaemonSet" or pod.ends_soon:
            return pod
        question = _question(pod)
        if question is not None and await self._exists(question):
            return pod
        return msgspec.structs.replace(pod, owner="")

    async def _exists(self, question: _Question) -> bool:
        # A DaemonSet has pods on all nodes, which are looked at together: the first one asks, the others wait for it.
        async with self._reading.setdefault(question, asyncio.Lock()):
            known, now = self._answers.get(question), self._clock.monotonic()
            if known is not None and now < known.until:
                return known.exists
            answer = await self._ask(question, known, now)
            if len(self._answers) >= _MOST:
                self._answers.clear()
            self._answers[question] = answer
            return answer.exists

    async def _ask(self, question: _Question, known: _Answer | None, now: float) -> _Answer:
        try:
            return _Answer(await self._read(question), now + KEPT_SECONDS, failed=False)
        except (Rejected, OSError) as error:
            # Without any answer the pod is believed. The API server fails most likely while machines fail, which is
            # when jobs need their spares: were the pods tenants, no spare of any pool could be claimed. The other
            # mistake costs less: until the next answer a spare may be shared with a pod that lies, and no pod's maker
            # can bring the error about.
            if known is None or not known.failed:
                log.warning("owner not read", owner=question.path, error=str(error), retry_seconds=RETRY_SECONDS)
            return _Answer(known is None or known.exists, now + RETRY_SECONDS, failed=True)

    async def _read(self, question: _Question) -> bool:
        try:
            data = await self._http.call("GET", question.path)
        except NotFound:
            return False
        if question.uid:
            return views.uid(data) == question.uid
        served = _resources.decode(data)
        return any(resource.kind == "DaemonSet" for resource in served.resources or [])


def _question(pod: Occupant) -> _Question | None:
    """Return what to ask about the pod's owner; None for an owner that no API server can have.

    DaemonSets of another group than apps, such as OpenKruise's, the operator has no right to read. Any client may ask
    whether the group has them, and only administrators add kinds.
    """
    api = _OWNER_API.fullmatch(pod.owner_api)
    # The API server checks no name in a reference: "." or "x/status" would ask for something else.
    if api is None or not _OWNER_NAME.fullmatch(pod.owner_name):
        return None
    if api[1] != "apps":
        return _Question(f"/apis/{pod.owner_api}", "")
    return _Question(path_of("apps/v1", "daemonsets", pod.namespace, pod.owner_name), pod.owner_uid)
