"""List the etcd calls that the client makes: path, message types, and whether a call may be repeated without harm.

A typed table instead of generated stubs: the generated ones are untyped and carry a server's half for every service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from falcon_etcd._proto import rpc_pb2 as pb

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


REQUIRE_LEADER: Final = (("hasleader", "true"),)
"""Metadata that asks a member which lost its leader to refuse at once instead of leaving the call to its deadline."""


@dataclass(frozen=True, slots=True)
class Rpc(Generic[RequestT, ResponseT]):
    """One method of one etcd service.

    ``repeatable``: a second execution changes nothing and answers the same, so a lost answer is asked for again.
    """

    path: str
    request: type[RequestT]
    response: type[ResponseT]
    repeatable: bool = False


RANGE: Final = Rpc("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse, repeatable=True)
PUT: Final = Rpc("/etcdserverpb.KV/Put", pb.PutRequest, pb.PutResponse)
DELETE_RANGE: Final = Rpc("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest, pb.DeleteRangeResponse)
TXN: Final = Rpc("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
READ_TXN: Final = Rpc("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse, repeatable=True)
COMPACT: Final = Rpc("/etcdserverpb.KV/Compact", pb.CompactionRequest, pb.CompactionResponse)

WATCH: Final = Rpc("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)

LEASE_GRANT: Final = Rpc("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_REVOKE: Final = Rpc("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
LEASE_KEEP_ALIVE: Final = Rpc(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse, repeatable=True
)
LEASE_TIME_TO_LIVE: Final = Rpc(
    "/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse, repeatable=True
)

MEMBER_LIST: Final = Rpc(
    "/etcdserverpb.Cluster/MemberList", pb.MemberListRequest, pb.MemberListResponse, repeatable=True
)
STATUS: Final = Rpc("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse, repeatable=True)
ALARM: Final = Rpc("/etcdserverpb.Maintenance/Alarm", pb.AlarmRequest, pb.AlarmResponse, repeatable=True)
DEFRAGMENT: Final = Rpc("/etcdserverpb.Maintenance/Defragment", pb.DefragmentRequest, pb.DefragmentResponse)

AUTH_ENABLE: Final = Rpc("/etcdserverpb.Auth/AuthEnable", pb.AuthEnableRequest, pb.AuthEnableResponse)
AUTH_DISABLE: Final = Rpc("/etcdserverpb.Auth/AuthDisable", pb.AuthDisableRequest, pb.AuthDisableResponse)
AUTH_STATUS: Final = Rpc("/etcdserverpb.Auth/AuthStatus", pb.AuthStatusRequest, pb.AuthStatusResponse, repeatable=True)
USER_ADD: Final = Rpc("/etcdserverpb.Auth/UserAdd", pb.AuthUserAddRequest, pb.AuthUserAddResponse)
USER_GET: Final = Rpc("/etcdserverpb.Auth/UserGet", pb.AuthUserGetRequest, pb.AuthUserGetResponse, repeatable=True)
USER_LIST: Final = Rpc("/etcdserverpb.Auth/UserList", pb.AuthUserListRequest, pb.AuthUserListResponse, repeatable=True)
USER_DELETE: Final = Rpc("/etcdserverpb.Auth/UserDelete", pb.AuthUserDeleteRequest, pb.AuthUserDeleteResponse)
USER_GRANT_ROLE: Final = Rpc(
    "/etcdserverpb.Auth/UserGrantRole", pb.AuthUserGrantRoleRequest, pb.AuthUserGrantRoleResponse
)
USER_REVOKE_ROLE: Final = Rpc(
    "/etcdserverpb.Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest, pb.AuthUserRevokeRoleResponse
)
ROLE_ADD: Final = Rpc("/etcdserverpb.Auth/RoleAdd", pb.AuthRoleAddRequest, pb.AuthRoleAddResponse)
ROLE_GET: Final = Rpc("/etcdserverpb.Auth/RoleGet", pb.AuthRoleGetRequest, pb.AuthRoleGetResponse, repeatable=True)
ROLE_LIST: Final = Rpc("/etcdserverpb.Auth/RoleList", pb.AuthRoleListRequest, pb.AuthRoleListResponse, repeatable=True)
ROLE_DELETE: Final = Rpc("/etcdserverpb.Auth/RoleDelete", pb.AuthRoleDeleteRequest, pb.AuthRoleDeleteResponse)
ROLE_GRANT: Final = Rpc(
    "/etcdserverpb.Auth/RoleGrantPermission",
    pb.AuthRoleGrantPermissionRequest,
    pb.AuthRoleGrantPermissionResponse,
)
ROLE_REVOKE: Final = Rpc(
    "/etcdserverpb.Auth/RoleRevokePermission",
    pb.AuthRoleRevokePermissionRequest,
    pb.AuthRoleRevokePermissionResponse,
)
