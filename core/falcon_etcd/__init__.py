"""Talk to etcd's v3 API with a small asyncio client.

    async with Client(["etcd:2379"], tls=Tls(ca, cert, key)) as client:
        lease = await client.lease(ttl_seconds=3)
        await client.put("/alive/a", b"1", lease.id)
        async for event in client.watch_prefix("/commands/"):
            match event:
                case Relisted(kvs, revision): ...        # everything there is; replaces all known before
                case WatchEvent("put", kv): ...
                case WatchEvent("delete", kv): ...

Errors are subclasses of :class:`EtcdError`. Writes are repeated only when they provably had no effect;
``Unavailable.maybe_applied`` tells the other case.
"""

from falcon_etcd._auth import Access, Auth, AuthStatus, Permission
from falcon_etcd._client import Client
from falcon_etcd._errors import (
    AlreadyExists,
    AuthNotEnabled,
    Closed,
    Compacted,
    EtcdError,
    FutureRevision,
    InvalidRequest,
    LeaseNotFound,
    NoSpace,
    NotFound,
    PermissionDenied,
    TimedOut,
    Unauthenticated,
    Unavailable,
)
from falcon_etcd._lease import Lease
from falcon_etcd._maintenance import Alarm, AlarmKind, Maintenance
from falcon_etcd._model import (
    DeleteResult,
    GetResult,
    KeyValue,
    LeaseInfo,
    Listing,
    Member,
    PutResult,
    Relisted,
    Status,
    Tls,
    TxnResult,
    WatchEvent,
)
from falcon_etcd._txn import MAX_TXN_OPS, Compare, Op

__all__ = [
    "MAX_TXN_OPS",
    "Access",
    "Alarm",
    "AlarmKind",
    "AlreadyExists",
    "Auth",
    "AuthNotEnabled",
    "AuthStatus",
    "Client",
    "Closed",
    "Compacted",
    "Compare",
    "DeleteResult",
    "EtcdError",
    "FutureRevision",
    "GetResult",
    "InvalidRequest",
    "KeyValue",
    "Lease",
    "LeaseInfo",
    "LeaseNotFound",
    "Listing",
    "Maintenance",
    "Member",
    "NoSpace",
    "NotFound",
    "Op",
    "Permission",
    "PermissionDenied",
    "PutResult",
    "Relisted",
    "Status",
    "TimedOut",
    "Tls",
    "TxnResult",
    "Unauthenticated",
    "Unavailable",
    "WatchEvent",
]
