"""Record Kubernetes Events, for ``kubectl describe``."""

from __future__ import annotations

import datetime as dt
import hashlib

import structlog

from falcon_operator.api.common import API_VERSION
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.base.ports import Clock, Conflict, Manifest, NotFound, Rejected
from falcon_operator.cluster.transport import MERGE_PATCH, AlreadyExists, Transport, path_of

COMPONENT = "falcon"
_NOTE_LIMIT = 1024  # bytes, the API's
log = structlog.get_logger(__name__)


def build_event(
    regarding: TrainingJob | WarmPool, type_: str, reason: str, note: str, *, instance: str, now: float
) -> Manifest:
    """Build the Event. Its name derives from its content: recording the same event twice gives one Event."""
    meta = regarding.metadata
    involved = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob" if isinstance(regarding, TrainingJob) else "WarmPool",
        "name": meta.name,
        "namespace": meta.namespace,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
    }
    return _event(involved, type_, reason, note, instance=instance, now=now)


def _event(involved: dict[str, str], type_: str, reason: str, note: str, *, instance: str, now: float) -> Manifest:
    digest = hashlib.sha256(f"{involved['uid']}/{type_}/{reason}/{note}".encode()).hexdigest()[:16]
    stamp = dt.datetime.fromtimestamp(int(now), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace = involved["namespace"] or "default"  # where Events of cluster-scoped objects live
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{involved['name'][:200]}.{digest}", "namespace": namespace},
        "involvedObject": involved,
        "type": type_,
        "reason": reason,
        "message": _cut(note),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


class Recorder:
    """Record Events about Secrets of the operator's own namespace."""

    def __init__(self, server: Transport, namespace: str, instance: str, clock: Clock) -> None:
        self._server = server
        self._namespace = namespace
        self._instance = instance
        self._clock = clock

    async def about_secret(self, name: str, type_: str, reason: str, note: str) -> None:
        """Record an Event. The Secret's uid is left out: a Secret that was deleted has none."""
        involved = {"apiVersion": "v1", "kind": "Secret", "name": name, "namespace": self._namespace, "uid": ""}
        event = _event(involved, type_, reason, note, instance=self._instance, now=self._clock.unix())
        await record(self._server, event)


def repeated(event: Manifest) -> Manifest:
    """Return the change to make to an Event that exists already."""
    return {"lastTimestamp": event["lastTimestamp"]}


def _cut(note: str) -> str:
    raw = note.encode()
    return note if len(raw) <= _NOTE_LIMIT else raw[: _NOTE_LIMIT - 3].decode(errors="ignore") + "…"


async def record(server: Transport, event: Manifest) -> bool:
    """Write an Event, or count it once more where it exists. Return whether it is there.

    Never raises: no decision depends on an Event.
    """
    path = path_of("v1", "events", event["metadata"]["namespace"])
    try:
        try:
            await server.call("POST", path, body=event, lane="Event")
        except AlreadyExists:
            name = f"{path}/{event['metadata']['name']}"
            await server.call("PATCH", name, body=repeated(event), content_type=MERGE_PATCH, lane="Event")
    except (Conflict, NotFound, Rejected, OSError) as error:
        log.warning("event not recorded", reason=event["reason"], note=event["message"], error=str(error))
        return False
    return True
