"""Typed errors: which answer of etcd becomes which error, and what the error tells."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from falcon_etcd import (
    AlreadyExists,
    AuthNotEnabled,
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
from falcon_etcd._errors import error_from_call, error_from_reason, error_from_status

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "detail", "kind"),
    [
        # from etcd's api/v3rpc/rpctypes/error.go
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", FutureRevision),
        (Code.OUT_OF_RANGE, "etcdserver: too large lease TTL", InvalidRequest),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseNotFound),
        (Code.NOT_FOUND, "etcdserver: member not found", NotFound),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", NoSpace),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Unavailable),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", PermissionDenied),
        (Code.FAILED_PRECONDITION, "etcdserver: authentication is not enabled", AuthNotEnabled),
        (Code.FAILED_PRECONDITION, "etcdserver: user name already exists", AlreadyExists),
        (Code.FAILED_PRECONDITION, "etcdserver: role name already exists", AlreadyExists),
        (Code.FAILED_PRECONDITION, "etcdserver: user name not found", NotFound),
        (Code.FAILED_PRECONDITION, "etcdserver: role name not found", NotFound),
        (Code.FAILED_PRECONDITION, "etcdserver: role is not granted to the user", NotFound),
        (Code.FAILED_PRECONDITION, "etcdserver: root user does not have root role", NotFound),
        (Code.FAILED_PRECONDITION, "etcdserver: not capable", EtcdError),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", Unauthenticated),
        (Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", InvalidRequest),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Unauthenticated),
        (Code.UNAVAILABLE, "etcdserver: no leader", Unavailable),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Unavailable),
        (Code.UNAVAILABLE, "Socket closed", Unavailable),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", TimedOut),
        (Code.DATA_LOSS, "etcdserver: corrupt cluster", EtcdError),
    ],
)
def test_each_answer_has_its_error(code: Code, detail: str, kind: type[EtcdError]) -> None:
    error = error_from_status(code, detail, operation="put /a", endpoint="etcd:2379")
    assert type(error) is kind
    assert str(error) == f"etcd put /a at etcd:2379: {detail} ({kind.remedy})"
    assert (error.operation, error.endpoint, error.detail) == ("put /a", "etcd:2379", detail)


def call_error(detail: str, code: Code = Code.UNAVAILABLE) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=detail)


@pytest.mark.parametrize(
    ("detail", "repeatable", "maybe_applied"),
    [
        ("Socket closed", False, True),
        ("Socket closed", True, False),
        ("etcdserver: leader changed", False, True),
        ("etcdserver: no leader", False, False),
        ("etcdserver: revision of auth store is old", False, False),
    ],
)
def test_a_write_that_was_sent_may_have_been_applied(detail: str, repeatable: bool, maybe_applied: bool) -> None:
    error = error_from_call(call_error(detail), operation="put /a", endpoint="e:1", repeatable=repeatable)
    assert isinstance(error, Unavailable)
    assert error.maybe_applied == maybe_applied
    assert ("may have been applied" in str(error)) == maybe_applied


def test_an_empty_answer_names_its_code() -> None:
    error = error_from_call(call_error("", Code.DATA_LOSS), operation="put /a", endpoint="e:1")
    assert "DATA_LOSS" in str(error)


def test_a_cancelled_watch_is_worth_another_try_unless_it_was_refused() -> None:
    refused = error_from_reason(
        "rpc error: code = PermissionDenied desc = etcdserver: permission denied", operation="watch /a", endpoint="e:1"
    )
    assert type(refused) is PermissionDenied
    assert type(error_from_reason("etcdserver: no leader", operation="watch /a", endpoint="e:1")) is Unavailable


def test_an_invalid_request_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="correct the request"):
        raise InvalidRequest("put ", "e:1", "key is not provided")
