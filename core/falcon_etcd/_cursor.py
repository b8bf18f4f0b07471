"""Remember where a watch stands, and decide whether it may go on from there.

A watch resumes from the revision after the last revision that it saw. That is right only while etcd's history is the
history that the watch saw. Three things end a history: compaction (etcd says so), another cluster (the id tells), and
lost data. After a loss the revision starts again from 1. That shows as a fall of the revision, unless quick writers
have already made it grow past the watch's position. Therefore the watch keeps a *witness*: the last key that it saw
put. It reads the witness as of the last revision that it saw (where it saw the witness deleted: as of the revision
before the deletion). Another history does not have the same key there with the same version, creation and value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from falcon_etcd._model import KeyValue, WatchEvent


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a watch in etcd's history.

    ``next_revision`` is the first revision not seen. ``cluster_id`` 0 and ``witness`` None mean that these are not
    known. ``witness_deleted`` is the revision that deleted the witness, None while the witness exists.
    """

    next_revision: int
    cluster_id: int = 0
    witness: KeyValue | None = None
    witness_deleted: int | None = None

    @classmethod
    def after_listing(cls, kvs: Iterable[KeyValue], revision: int, cluster_id: int) -> Cursor:
        """Return the cursor behind a listing."""
        return cls(revision + 1, cluster_id, max(kvs, key=lambda kv: kv.mod_revision, default=None))

    @property
    def seen_revision(self) -> int:
        return self.next_revision - 1

    @property
    def witness_revision(self) -> int:
        """Return the latest revision at which the witness was unchanged."""
        return self.seen_revision if self.witness_deleted is None else self.witness_deleted - 1

    def misfit(self, cluster_id: int, revision: int, *, fresh: bool) -> str | None:
        """Return why a stream of a member with this header cannot continue the watch; None when it can.

        Where there is a witness, the witness has to agree too. A member may lag behind the cluster, so a low revision
        alone proves nothing where there is a witness to ask for. ``fresh``: nothing has been seen since the listing, or
        since the caller named the revision.
        """
        if self.cluster_id not in (0, cluster_id):
            return f"cluster {cluster_id:x} instead of {self.cluster_id:x}"
        if self.witness is None and not fresh:
            return "no key was seen by which to recognise the history"
        if self.witness is None and revision < self.seen_revision:
            return f"revision {revision} is below {self.seen_revision}"
        return None

    def contradiction(self, revision: int, found: KeyValue | None) -> str | None:
        """Return how a read of the witness contradicts this history; None where it does not.

        The read is linearizable and was made at :attr:`witness_revision`. ``revision`` is the cluster's revision at the
        time of the read, ``found`` its result.
        """
        if revision < self.seen_revision:
            return f"revision {revision} is below {self.seen_revision}"
        if self.witness is not None and found != self.witness:
            return f"{self.witness.key} at revision {self.witness_revision} is not what it was"
        return None

    def of_cluster(self, cluster_id: int) -> Cursor:
        return replace(self, cluster_id=cluster_id)

    def after(self, events: Iterable[WatchEvent]) -> Cursor:
        """Return the cursor behind these events, which are all the events of their revisions."""
        next_revision, witness, deleted = self.next_revision, self.witness, self.witness_deleted
        for event in events:
            next_revision = max(next_revision, event.kv.mod_revision + 1)
            if event.type == "put":
                witness, deleted = event.kv, None
            elif witness is not None and witness.key == event.kv.key:
                deleted = event.kv.mod_revision
        return replace(self, next_revision=next_revision, witness=witness, witness_deleted=deleted)

    def after_progress(self, revision: int) -> Cursor:
        """Return the cursor behind a notice that everything up to ``revision`` was delivered."""
        return replace(self, next_revision=max(self.next_revision, revision + 1))
