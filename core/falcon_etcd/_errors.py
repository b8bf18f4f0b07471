"""Define the errors, and read etcd's status codes and messages in one place.

Every error says what was asked, of which endpoint, what etcd answered, and what to do about it.
"""

# ruff: noqa: N818 — gRPC and etcd name conditions, not errors; ours follow them

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio


class EtcdError(Exception):
    """Something etcd or the way to it refused.

    ``operation`` is what was asked ("put /a"), ``endpoint`` which member was asked ("": none), ``detail`` the answer.
    """

    remedy = "see etcd's log"

    def __init__(self, operation: str, endpoint: str, detail: str, *, remedy: str = "") -> None:
        self.operation = operation
        self.endpoint = endpoint
        self.detail = detail
        at = f" at {endpoint}" if endpoint else ""
        super().__init__(f"etcd {operation}{at}: {detail} ({remedy or self.remedy})")


class Unavailable(EtcdError):
    """No endpoint answered in time, or the cluster has no leader.

    ``maybe_applied``: the request had left, so a write may have taken effect. Read before repeating it, or make it a
    transaction whose comparison fails the second time.
    """

    remedy = "check that etcd runs, that the endpoints, the network and the certificates are right, and retry"

    def __init__(
        self, operation: str, endpoint: str, detail: str, *, maybe_applied: bool = False, remedy: str = ""
    ) -> None:
        self.maybe_applied = maybe_applied
        note = "; a write may have been applied" if maybe_applied else ""
        super().__init__(operation, endpoint, detail + note, remedy=remedy)


class TimedOut(Unavailable):
    """The call's deadline passed."""

    remedy = "etcd is slow or the network drops packets: check its disk and load, or raise call_timeout_seconds"


class PermissionDenied(EtcdError):
    """Authentication is on and this certificate's user has no such permission, or is not known."""

    remedy = "grant the prefix to a role of the user named by the client certificate's common name"


class Unauthenticated(EtcdError):
    """Authentication is on and the call carries no user."""

    remedy = "connect with a client certificate whose common name is an etcd user, to an etcd with --client-cert-auth"


class AuthNotEnabled(EtcdError):
    """The operation needs authentication, which is off (a data loss turns it off, too)."""

    remedy = "add user root with role root, then client.auth.enable()"


class Compacted(EtcdError):
    """The revision asked for was compacted away."""

    remedy = "list again and continue from the listing's revision"


class FutureRevision(EtcdError):
    """The revision asked for does not exist yet: etcd lost data, or the number is another cluster's."""

    remedy = "list again and continue from the listing's revision"


class NotFound(EtcdError):
    """No such user, role or member, or the user does not have the role."""

    remedy = "create or grant it first"


class LeaseNotFound(NotFound):
    """The lease expired or was revoked."""

    remedy = "grant a new lease and put its keys again"


class AlreadyExists(EtcdError):
    """The user or role exists."""

    remedy = "use it as it is, or delete it first"


class InvalidRequest(EtcdError, ValueError):
    """The request can never succeed as it is."""

    remedy = "correct the request"


class NoSpace(EtcdError):
    """etcd's database reached its quota; it refuses writes until room is made and the alarm is disarmed."""

    remedy = "compact, defragment and disarm the NOSPACE alarm, or raise --quota-backend-bytes"


class Closed(EtcdError):
    """The client was closed, or never opened."""

    remedy = "use the client inside `async with`"


# Refusals that had no effect and pass by themselves. The second: users or roles changed while the call was on its way.
_REFUSED_FOR_NOW: Final = ("etcdserver: no leader", "etcdserver: revision of auth store is old")

# etcd's message (a part of it) -> error. Codes alone do not tell: FAILED_PRECONDITION means six things.
_BY_MESSAGE: Final[tuple[tuple[str, type[EtcdError]], ...]] = (
    ("required revision has been compacted", Compacted),
    ("required revision is a future revision", FutureRevision),
    ("requested lease not found", LeaseNotFound),
    ("database space exceeded", NoSpace),
    ("permission denied", PermissionDenied),
    ("authentication is not enabled", AuthNotEnabled),
    ("user name already exists", AlreadyExists),
    ("role name already exists", AlreadyExists),
    ("lease already exists", AlreadyExists),
    ("user name not found", NotFound),
    ("role name not found", NotFound),
    ("role is not granted", NotFound),
    ("permission is not granted", NotFound),
    ("member not found", NotFound),
    ("root user does not", NotFound),
    ("user name is empty", Unauthenticated),
    ("invalid auth token", Unauthenticated),
    ("authentication failed", Unauthenticated),
    ("no leader", Unavailable),
    ("revision of auth store is old", Unavailable),
    ("too many requests", Unavailable),
)
_BY_CODE: Final[dict[grpc.StatusCode, type[EtcdError]]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOut,
    grpc.StatusCode.CANCELLED: Unavailable,  # by the server or the channel: our own cancellation is CancelledError
    grpc.StatusCode.UNKNOWN: Unavailable,  # a stream that a dying server cut
    grpc.StatusCode.INTERNAL: Unavailable,  # HTTP/2 reset
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
}


def error_from_status(
    code: grpc.StatusCode, detail: str, *, operation: str, endpoint: str, maybe_applied: bool = False
) -> EtcdError:
    """Return the typed error for a gRPC status; ``maybe_applied`` where the request may have taken effect."""
    kind = next((kind for text, kind in _BY_MESSAGE if text in detail), None) or _BY_CODE.get(code, EtcdError)
    detail = detail or code.name
    if issubclass(kind, Unavailable):
        return kind(operation, endpoint, detail, maybe_applied=maybe_applied)
    return kind(operation, endpoint, detail)


def error_from_call(
    error: grpc.aio.AioRpcError, *, operation: str, endpoint: str, repeatable: bool = True
) -> EtcdError:
    """Return the typed error of a call that was handed to a connected channel.

    A write may have taken effect unless etcd refused it. A member without a leader refuses before it proposes a write.
    """
    detail = error.details() or ""
    return error_from_status(
        error.code(),
        detail,
        operation=operation,
        endpoint=endpoint,
        maybe_applied=not repeatable and detail not in _REFUSED_FOR_NOW,
    )


def error_from_reason(reason: str, *, operation: str, endpoint: str) -> EtcdError:
    """Return the typed error for the reason that etcd gives when it cancels a watch."""
    return error_from_status(grpc.StatusCode.UNAVAILABLE, reason, operation=operation, endpoint=endpoint)
