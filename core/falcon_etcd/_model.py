"""Define what the client takes and returns: frozen values, keys as text, values as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from falcon_etcd._proto import kv_pb2, rpc_pb2


def encode_key(key: str) -> bytes:
    """Encode a key as UTF-8. Foreign keys that are not UTF-8 survive a round trip through :func:`decode_key`."""
    return key.encode("utf-8", "surrogateescape")


def decode_key(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """Return etcd's ``[key, range_end)`` for all keys that begin with ``prefix``; "" means every key."""
    start = encode_key(prefix)
    stripped = start.rstrip(b"\xff")
    if not stripped:
        return start or b"\0", b"\0"
    return start, stripped[:-1] + bytes([stripped[-1] + 1])


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the CA that signed etcd's certificate, and our own certificate, whose common name is our etcd user.

    ``server_name`` replaces the endpoint's host in the check of etcd's certificate. The files are read again
    for every new connection attempt after they changed, so that rotated certificates are taken up.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key belong together; give both or neither")


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key at one revision. ``version`` counts changes since creation; ``lease`` is 0 where there is none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int

    @classmethod
    def from_proto(cls, kv: kv_pb2.KeyValue) -> KeyValue:
        return cls(decode_key(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


@dataclass(frozen=True, slots=True)
class Listing:
    """Keys in order, all as of one ``revision``. ``more``: the limit cut the listing short."""

    kvs: Sequence[KeyValue]
    revision: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change. A deleted key has its name and the deletion's ``mod_revision``, no value.

    ``previous`` is the key before the change, where the watch asked for it and etcd still had it.
    """

    type: Literal["put", "delete"]
    kv: KeyValue
    previous: KeyValue | None = None


@dataclass(frozen=True, slots=True)
class Relisted:
    """All that exists now, replacing all that the consumer knew: keys absent here are gone."""

    kvs: Sequence[KeyValue]
    revision: int


@dataclass(frozen=True, slots=True)
class PutResult:
    """Answer to ``Op.put``."""

    revision: int


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Answer to ``Op.delete``."""

    deleted: int


@dataclass(frozen=True, slots=True)
class GetResult:
    """Answer to ``Op.get``."""

    kvs: Sequence[KeyValue]

    @property
    def kv(self) -> KeyValue | None:
        return self.kvs[0] if self.kvs else None


@dataclass(frozen=True, slots=True)
class TxnResult:
    """A transaction's result: ``success`` ran if ``succeeded``, else ``failure``. One response for each operation."""

    succeeded: bool
    responses: Sequence[PutResult | DeleteResult | GetResult]
    revision: int


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease as etcd knows it. ``remaining_seconds`` is -1 for a lease that does not exist."""

    id: int
    granted_seconds: int
    remaining_seconds: int
    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class Status:
    """One member's view. ``leader_id`` 0: it knows no leader. ``errors``: raised alarms and the like.

    ``db_size_bytes`` is the file, and what etcd compares with the quota; ``db_in_use_bytes`` is what a defragmentation
    would leave. ``db_quota_bytes`` is 0 where etcd does not tell its quota (before 3.6).
    """

    endpoint: str
    version: str
    cluster_id: int
    member_id: int
    leader_id: int
    raft_term: int
    revision: int
    db_size_bytes: int
    db_in_use_bytes: int
    db_quota_bytes: int
    is_learner: bool
    errors: Sequence[str]

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.member_id

    @classmethod
    def from_proto(cls, endpoint: str, status: rpc_pb2.StatusResponse) -> Status:
        return cls(
            endpoint=endpoint,
            version=status.version,
            cluster_id=status.header.cluster_id,
            member_id=status.header.member_id,
            leader_id=status.leader,
            raft_term=status.raftTerm,
            revision=status.header.revision,
            db_size_bytes=status.dbSize,
            db_in_use_bytes=status.dbSizeInUse,
            db_quota_bytes=status.dbSizeQuota,
            is_learner=status.isLearner,
            errors=tuple(status.errors),
        )


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the cluster. An empty name: it has not started yet."""

    id: int
    name: str
    peer_urls: Sequence[str]
    client_urls: Sequence[str]
    is_learner: bool
