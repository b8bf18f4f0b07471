"""Where a watch stands, and whether it may go on from there. Pure: the watch does what this says.

A watch resumes from the revision after the last one it saw. That is right only while etcd's history is the one it saw.
Three things end a history: compaction (etcd says so), another cluster (the id tells), and lost data. After a loss the
revision starts again from 1, which shows as a fall, unless writers have been quick and it has already grown past
the watch's position. Therefore the watch keeps a *witness*, the last key it saw put, and reads it as of that revision:
another history does not have the same key there with the same version, creation and value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from falcon_etcd._model import KeyValue, WatchEvent


@dataclass(frozen=True, slots=True)
class Cursor:
    """``next_revision`` is the first one not seen; ``cluster_id`` 0 and ``witness`` None: not known yet."""

    next_revision: int
    cluster_id: int = 0
    witness: KeyValue | None = None

    @classmethod
    def after_listing(cls, kvs: Iterable[KeyValue], revision: int, cluster_id: int) -> Cursor:
        witness = max(kvs, key=lambda kv: kv.mod_revision, default=None)
        return cls(revision + 1, cluster_id, witness)

    def accepts(self, cluster_id: int, revision: int) -> bool:
        """Whether a member of this cluster at this revision can continue the history as far as its header tells."""
        return self.cluster_id in (0, cluster_id) and revision >= self.next_revision - 1

    def confirmed_by(self, kv: KeyValue | None) -> bool:
        """Whether ``kv``, read at the witness's revision, is the witness."""
        return self.witness is not None and kv == self.witness

    def at(self, cluster_id: int) -> Cursor:
        return replace(self, cluster_id=cluster_id)

    def seen(self, events: Iterable[WatchEvent], revision: int) -> Cursor:
        """After an answer with these events, or after a progress notice (no events) at ``revision``."""
        next_revision, witness = self.next_revision, self.witness
        empty = True
        for event in events:
            empty = False
            next_revision = max(next_revision, event.kv.mod_revision + 1)
            if event.type == "put":
                witness = event.kv
        if empty:
            next_revision = max(next_revision, revision + 1)
        return replace(self, next_revision=next_revision, witness=witness)
