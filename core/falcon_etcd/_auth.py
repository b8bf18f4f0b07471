"""Manage users, roles and permissions.

Users here have no password: etcd takes the common name of the client certificate for the user
(``--client-cert-auth``), and nothing about a login is kept in this process. When etcd loses its data, users are gone
and authentication is off; :meth:`Auth.status` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from falcon_etcd import _rpc
from falcon_etcd._model import decode_key, encode_key, prefix_range
from falcon_etcd._proto import auth_pb2
from falcon_etcd._proto import rpc_pb2 as pb
from falcon_etcd._transport import Transport

Access: TypeAlias = Literal["read", "write", "readwrite"]

_TO_PROTO: Final = {
    "read": auth_pb2.Permission.READ,
    "write": auth_pb2.Permission.WRITE,
    "readwrite": auth_pb2.Permission.READWRITE,
}
_FROM_PROTO: Final[dict[int, Access]] = {
    auth_pb2.Permission.READ: "read",
    auth_pb2.Permission.WRITE: "write",
    auth_pb2.Permission.READWRITE: "readwrite",
}


@dataclass(frozen=True, slots=True)
class AuthStatus:
    """The state of authentication; ``revision`` grows with every change of users, roles and permissions."""

    enabled: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Permission:
    """Access to keys in ``[key, range_end)``; a single key where ``range_end`` is empty."""

    access: Access
    key: str
    range_end: str


class Auth:
    """Users, roles and permissions: ``client.auth``. Once authentication is on, only users with role root may call."""

    def __init__(self, transport: Transport) -> None:
        self._call = transport.call

    async def status(self) -> AuthStatus:
        """Return whether authentication is on, asked of etcd each time.

        Raises :class:`PermissionDenied` for a user who is not root; the refusal implies that authentication is on.
        """
        response = await self._call(_rpc.AUTH_STATUS, pb.AuthStatusRequest(), "auth status")
        return AuthStatus(response.enabled, response.authRevision)

    async def enable(self) -> None:
        """Turn authentication on. Needs a user ``root`` with role ``root``. A second call changes nothing."""
        await self._call(_rpc.AUTH_ENABLE, pb.AuthEnableRequest(), "auth enable")

    async def disable(self) -> None:
        await self._call(_rpc.AUTH_DISABLE, pb.AuthDisableRequest(), "auth disable")

    async def add_user(self, name: str) -> None:
        """Add a user without password, who is known by the certificate alone. Raises :class:`AlreadyExists`."""
        request = pb.AuthUserAddRequest(name=name, options=auth_pb2.UserAddOptions(no_password=True))
        await self._call(_rpc.USER_ADD, request, f"add user {name}")

    async def delete_user(self, name: str) -> None:
        await self._call(_rpc.USER_DELETE, pb.AuthUserDeleteRequest(name=name), f"delete user {name}")

    async def list_users(self) -> Sequence[str]:
        response = await self._call(_rpc.USER_LIST, pb.AuthUserListRequest(), "list users")
        return tuple(response.users)

    async def user_roles(self, name: str) -> Sequence[str]:
        response = await self._call(_rpc.USER_GET, pb.AuthUserGetRequest(name=name), f"get user {name}")
        return tuple(response.roles)

    async def grant_role(self, user: str, role: str) -> None:
        request = pb.AuthUserGrantRoleRequest(user=user, role=role)
        await self._call(_rpc.USER_GRANT_ROLE, request, f"grant role {role} to user {user}")

    async def revoke_role(self, user: str, role: str) -> None:
        request = pb.AuthUserRevokeRoleRequest(name=user, role=role)
        await self._call(_rpc.USER_REVOKE_ROLE, request, f"revoke role {role} from user {user}")

    async def add_role(self, name: str) -> None:
        """Add a role. Raises :class:`AlreadyExists`."""
        await self._call(_rpc.ROLE_ADD, pb.AuthRoleAddRequest(name=name), f"add role {name}")

    async def delete_role(self, name: str) -> None:
        """Delete a role and take the role from all users who have it."""
        await self._call(_rpc.ROLE_DELETE, pb.AuthRoleDeleteRequest(role=name), f"delete role {name}")

    async def list_roles(self) -> Sequence[str]:
        response = await self._call(_rpc.ROLE_LIST, pb.AuthRoleListRequest(), "list roles")
        return tuple(response.roles)

    async def permissions(self, role: str) -> Sequence[Permission]:
        response = await self._call(_rpc.ROLE_GET, pb.AuthRoleGetRequest(role=role), f"get role {role}")
        return tuple(
            Permission(_FROM_PROTO[p.permType], decode_key(p.key), decode_key(p.range_end)) for p in response.perm
        )

    async def grant_prefix(self, role: str, prefix: str, access: Access) -> None:
        """Grant access to every key that begins with ``prefix``; replaces an earlier grant of the same prefix."""
        await self._grant(role, *prefix_range(prefix), access, f"grant {access} on {prefix}* to role {role}")

    async def grant_range(self, role: str, start: str, end: str, access: Access) -> None:
        """Grant access to the keys in ``[start, end)``; with an empty ``end`` to the single key ``start``."""
        operation = f"grant {access} on [{start}, {end}) to role {role}"
        await self._grant(role, encode_key(start), encode_key(end), access, operation)

    async def _grant(self, role: str, start: bytes, end: bytes, access: Access, operation: str) -> None:
        permission = auth_pb2.Permission(permType=_TO_PROTO[access], key=start, range_end=end)
        await self._call(_rpc.ROLE_GRANT, pb.AuthRoleGrantPermissionRequest(name=role, perm=permission), operation)

    async def revoke_prefix(self, role: str, prefix: str) -> None:
        start, end = prefix_range(prefix)
        request = pb.AuthRoleRevokePermissionRequest(role=role, key=start, range_end=end)
        await self._call(_rpc.ROLE_REVOKE, request, f"revoke {prefix}* from role {role}")
