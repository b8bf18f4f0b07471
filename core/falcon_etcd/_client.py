"""Offer the client's calls: keys, transactions, leases, watches, members.

Users and roles are in :mod:`falcon_etcd._auth`, alarms in :mod:`falcon_etcd._maintenance`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Final

from falcon_etcd import _rpc
from falcon_etcd._auth import Auth
from falcon_etcd._errors import Compacted, InvalidRequest
from falcon_etcd._lease import Lease
from falcon_etcd._maintenance import Maintenance
from falcon_etcd._model import (
    KeyValue,
    LeaseInfo,
    Listing,
    Member,
    Relisted,
    Status,
    Tls,
    TxnResult,
    WatchEvent,
    decode_key,
    encode_key,
    prefix_range,
)
from falcon_etcd._pool import Pool
from falcon_etcd._proto import rpc_pb2 as pb
from falcon_etcd._transport import Transport
from falcon_etcd._txn import Compare, Op, build_txn, read_txn
from falcon_etcd._watch import Watcher

_PAGE_KEYS: Final = 1_000
_LIST_ATTEMPTS: Final = 3


class Client:
    """A connection to one etcd cluster, for one event loop.

    ``endpoints`` are ``host:port``; calls stay with one endpoint while it answers. ``call_timeout_seconds`` bounds a
    call with all its repetitions; only watches and leases wait longer, in the background. Every method raises
    subclasses of :class:`EtcdError`. Use as ``async with Client([...]) as client``. Nothing connects until the first
    call.
    """

    def __init__(self, endpoints: Sequence[str], tls: Tls | None = None, call_timeout_seconds: float = 3.0) -> None:
        if call_timeout_seconds <= 0:
            raise ValueError(f"call_timeout_seconds: {call_timeout_seconds} is not above 0")
        self._pool = Pool(endpoints, tls)
        self._transport = Transport(self._pool, call_timeout_seconds)
        self._call = self._transport.call
        self._leases: set[Lease] = set()
        self.auth = Auth(self._transport)
        self.maintenance = Maintenance(self._transport)

    @property
    def endpoints(self) -> Sequence[str]:
        """Return the configured addresses."""
        return self._pool.addresses

    async def __aenter__(self) -> Client:
        self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections. Leases are not revoked: they expire. Watches and calls in flight raise ``Closed``."""
        leases, self._leases = self._leases, set()
        for lease in leases:
            await lease.stop()
        await self._pool.close()

    # keys

    async def get(self, key: str, *, revision: int = 0) -> KeyValue | None:
        """Return the key now, or as of ``revision``; None where the key does not exist.

        Raises :class:`Compacted` when etcd no longer has that revision.
        """
        request = pb.RangeRequest(key=encode_key(key), revision=revision)
        response = await self._call(_rpc.RANGE, request, f"get {key}")
        return KeyValue.from_proto(response.kvs[0]) if response.kvs else None

    async def get_prefix(self, prefix: str, *, revision: int = 0, limit: int = 0) -> Listing:
        """Return the keys that begin with ``prefix`` ("": all), in order, as of one revision.

        At most ``limit`` keys are returned (0: all).
        """
        listing, _ = await self._list(*prefix_range(prefix), revision, limit, f"list {prefix}")
        return listing

    async def get_range(self, start: str, end: str, *, revision: int = 0, limit: int = 0) -> Listing:
        """Return the keys in ``[start, end)``, in order, as of one revision; at most ``limit`` (0: all).

        To page by hand: next start = last key + NUL, at the first page's revision.
        """
        listing, _ = await self._list(encode_key(start), encode_key(end), revision, limit, f"list [{start}, {end})")
        return listing

    async def _list(self, start: bytes, end: bytes, revision: int, limit: int, operation: str) -> tuple[Listing, int]:
        """Return the listing and the cluster's id. Reads in pages; begins again if compaction overtakes the reading."""
        for attempt in range(1, _LIST_ATTEMPTS + 1):
            try:
                return await self._list_pages(start, end, revision, limit, operation)
            except Compacted:
                if revision or attempt == _LIST_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def _list_pages(
        self, start: bytes, end: bytes, revision: int, limit: int, operation: str
    ) -> tuple[Listing, int]:
        kvs: list[KeyValue] = []
        while True:
            page = min(_PAGE_KEYS, limit - len(kvs)) if limit else _PAGE_KEYS
            request = pb.RangeRequest(key=start, range_end=end, revision=revision, limit=page)
            response = await self._call(_rpc.RANGE, request, operation)
            kvs += [KeyValue.from_proto(kv) for kv in response.kvs]
            revision = revision or response.header.revision
            if not response.more or len(kvs) == limit:
                return Listing(tuple(kvs), revision, response.more), response.header.cluster_id
            start = response.kvs[-1].key + b"\0"

    async def put(self, key: str, value: bytes, lease_id: int = 0) -> int:
        """Write the key and return the new revision. Raises :class:`LeaseNotFound` when the lease is gone."""
        request = pb.PutRequest(key=encode_key(key), value=value, lease=lease_id)
        response = await self._call(_rpc.PUT, request, f"put {key}")
        return response.header.revision

    async def delete(self, key: str) -> int:
        """Delete the key and return how many keys were deleted: 0 or 1."""
        request = pb.DeleteRangeRequest(key=encode_key(key))
        return (await self._call(_rpc.DELETE_RANGE, request, f"delete {key}")).deleted

    async def delete_prefix(self, prefix: str) -> int:
        """Delete the keys that begin with ``prefix`` and return their number.

        Raises :class:`InvalidRequest` for an empty prefix.
        """
        operation = f"delete {prefix}*"
        if not prefix:
            raise InvalidRequest(operation, "", "prefix: empty means every key", remedy="name the prefix")
        start, end = prefix_range(prefix)
        request = pb.DeleteRangeRequest(key=start, range_end=end)
        return (await self._call(_rpc.DELETE_RANGE, request, operation)).deleted

    async def txn(
        self, compare: Iterable[Compare] = (), success: Iterable[Op] = (), failure: Iterable[Op] = ()
    ) -> TxnResult:
        """Run all of ``success`` if every comparison in ``compare`` holds, else all of ``failure``, at one revision."""
        success, failure = list(success), list(failure)
        request = build_txn(list(compare), success, failure)
        writes = any(op.writes for op in (*success, *failure))
        return read_txn(await self._call(_rpc.TXN if writes else _rpc.READ_TXN, request, "txn"))

    async def compact(self, revision: int, *, physical: bool = False, timeout_seconds: float | None = None) -> None:
        """Forget what was before ``revision``: older reads and watches get :class:`Compacted`.

        ``physical``: return only when the member in use has freed the space, which takes longer than most calls.
        Raises :class:`Compacted` when that revision is gone already.
        """
        request = pb.CompactionRequest(revision=revision, physical=physical)
        await self._call(_rpc.COMPACT, request, f"compact to {revision}", timeout_seconds=timeout_seconds)

    # leases

    async def lease(self, ttl_seconds: int) -> Lease:
        """Grant a lease and keep it alive. etcd may raise the time to live (at its default timings to 2 s at least)."""
        granted_at = time.monotonic()
        request = pb.LeaseGrantRequest(TTL=ttl_seconds)
        response = await self._call(_rpc.LEASE_GRANT, request, f"grant a lease of {ttl_seconds} s")
        lease = Lease(self._transport, response.ID, response.TTL, granted_at)
        self._leases = {known for known in self._leases if known.kept} | {lease}
        return lease

    async def time_to_live(self, lease_id: int) -> LeaseInfo:
        """Return what etcd knows of a lease, with its keys."""
        request = pb.LeaseTimeToLiveRequest(ID=lease_id, keys=True)
        response = await self._call(_rpc.LEASE_TIME_TO_LIVE, request, f"read lease {lease_id:x}")
        return LeaseInfo(
            response.ID, response.grantedTTL, response.TTL, tuple(decode_key(key) for key in response.keys)
        )

    async def revoke(self, lease_id: int) -> None:
        """End any lease by its id. For a lease of this client use ``Lease.close``.

        Raises :class:`LeaseNotFound` when the lease is gone.
        """
        await self._call(_rpc.LEASE_REVOKE, pb.LeaseRevokeRequest(ID=lease_id), f"revoke lease {lease_id:x}")

    # watches

    def watch_prefix(
        self, prefix: str, start_revision: int | None = None, *, with_previous: bool = False
    ) -> AsyncGenerator[WatchEvent | Relisted, None]:
        """Yield what happens under ``prefix``, for ever: each event once, in order of revisions.

        Without ``start_revision`` the watch begins with a :class:`Relisted`. The watch survives lost connections and
        etcd restarts, and goes on after the last revision seen. Where that is impossible (compaction, lost data,
        another cluster), the watch yields a :class:`Relisted`, at any time, which replaces all that was known before.
        Raises :class:`PermissionDenied` when the prefix may not be read (also after a data loss, until the user exists
        again), and :class:`Closed` when the client closes.
        """

        async def lister() -> tuple[Sequence[KeyValue], int, int]:
            listing, cluster_id = await self._list(*prefix_range(prefix), 0, 0, f"list {prefix}")
            return listing.kvs, listing.revision, cluster_id

        watcher = Watcher(self._transport, prefix, lister, with_previous=with_previous)
        return watcher.events(start_revision)

    # the cluster

    async def status(self, endpoint: str | None = None) -> Status:
        """Return the state of the member at ``endpoint`` (one of :attr:`endpoints`), or of the member in use."""
        if endpoint is not None and endpoint not in self.endpoints:
            raise ValueError(f"endpoint: {endpoint} is none of {', '.join(self.endpoints)}")
        chosen = await self._pool.ready(self._transport.call_timeout_seconds, "status", endpoint)
        response = await self._call(
            _rpc.STATUS, pb.StatusRequest(), "status", only=chosen.address, require_leader=False
        )
        return Status.from_proto(chosen.address, response)

    async def members(self) -> Sequence[Member]:
        """Return the members of the cluster, as the quorum knows them."""
        response = await self._call(_rpc.MEMBER_LIST, pb.MemberListRequest(linearizable=True), "list members")
        return tuple(
            Member(m.ID, m.name, tuple(m.peerURLs), tuple(m.clientURLs), m.isLearner) for m in response.members
        )
