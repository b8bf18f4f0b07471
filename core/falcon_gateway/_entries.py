"""Merge batches into what is known of pods, whichever way and in whatever order they come.

A batch reaches the operator by the stream and by etcd, and a pod's agent may have moved to another gateway meanwhile.
Of several entries of a pod, the entry with the greatest (session, change) holds: sessions count an agent's streams,
changes what one gateway saw of the pod. So merging is idempotent and needs no order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from falcon_gateway._proto.gateway_pb2 import Batch, Entry


@dataclass(frozen=True, slots=True)
class PodEntry:
    """The newest that is known of a pod. Times are unix ns of the gateway's clock."""

    gateway: str
    incarnation: int  # of the gateway: when its process began, unix ns
    session: int
    sequence: int
    change: int
    received_unix_ns: int
    alive: bool
    silent_ms: int
    payload: bytes  # b"": no report has come yet

    @property
    def order(self) -> tuple[int, int]:
        """Return what sets newer entries of a pod apart from older ones."""
        return self.session, self.change


class Entries:
    """The pods of one job."""

    def __init__(self) -> None:
        self._pods: dict[str, PodEntry] = {}

    @property
    def pods(self) -> Mapping[str, PodEntry]:
        """Return the newest entry by pod uid."""
        return self._pods

    def merge(self, batch: Batch) -> list[str]:
        """Take a batch of this job. Return the uids of the pods of which it says something new."""
        return [entry.pod_uid for entry in batch.entries if self._merge(batch, entry)]

    def keep(self, pod_uids: Collection[str]) -> None:
        """Forget all other pods."""
        self._pods = {uid: entry for uid, entry in self._pods.items() if uid in pod_uids}

    def _merge(self, batch: Batch, entry: Entry) -> bool:
        fresh = PodEntry(
            gateway=batch.gateway,
            incarnation=batch.incarnation,
            session=entry.session,
            sequence=entry.sequence,
            change=entry.change,
            received_unix_ns=entry.received_unix_ns,
            alive=entry.alive,
            silent_ms=entry.silent_ms,
            payload=entry.payload,
        )
        # Batches come by two ways and in any order: only a newer entry replaces the known one.
        known = self._pods.get(entry.pod_uid)
        if known is not None:
            if fresh.order <= known.order:
                return False
            if not fresh.payload:  # a gateway that is new to the pod has only its agent's presence
                fresh = replace(fresh, payload=known.payload, received_unix_ns=known.received_unix_ns)
        self._pods[entry.pod_uid] = fresh
        return True
