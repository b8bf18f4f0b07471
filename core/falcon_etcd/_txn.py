"""Build the comparisons and operations of a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from falcon_etcd._errors import InvalidRequest
from falcon_etcd._model import DeleteResult, GetResult, KeyValue, PutResult, TxnResult, encode_key, prefix_range
from falcon_etcd._proto import rpc_pb2

MAX_TXN_OPS = 100
"""Operations in one branch, and comparisons. etcd's own default limit is 128; a cluster may be set lower."""

Relation: TypeAlias = Literal["==", "!=", "<", ">"]

_RELATIONS: Final = {
    "==": rpc_pb2.Compare.EQUAL,
    "!=": rpc_pb2.Compare.NOT_EQUAL,
    "<": rpc_pb2.Compare.LESS,
    ">": rpc_pb2.Compare.GREATER,
}


def _result(relation: str) -> rpc_pb2.Compare.CompareResult:
    try:
        return _RELATIONS[relation]
    except KeyError:
        raise ValueError(f"relation: {relation!r} is none of {', '.join(_RELATIONS)}") from None


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition on a key. A key that does not exist has version, create and mod revision 0."""

    proto: rpc_pb2.Compare

    @staticmethod
    def version(key: str, relation: Relation, version: int) -> Compare:
        """Compare the number of changes since the key's creation, the creation included; ``== 0``: no such key."""
        return Compare(
            rpc_pb2.Compare(
                key=encode_key(key), result=_result(relation), target=rpc_pb2.Compare.VERSION, version=version
            )
        )

    @staticmethod
    def create_revision(key: str, relation: Relation, revision: int) -> Compare:
        return Compare(
            rpc_pb2.Compare(
                key=encode_key(key),
                result=_result(relation),
                target=rpc_pb2.Compare.CREATE,
                create_revision=revision,
            )
        )

    @staticmethod
    def mod_revision(key: str, relation: Relation, revision: int) -> Compare:
        return Compare(
            rpc_pb2.Compare(
                key=encode_key(key), result=_result(relation), target=rpc_pb2.Compare.MOD, mod_revision=revision
            )
        )

    @staticmethod
    def value(key: str, relation: Relation, value: bytes) -> Compare:
        """Compare the key's value. For a key that does not exist every comparison of values fails, ``!=`` too."""
        return Compare(
            rpc_pb2.Compare(key=encode_key(key), result=_result(relation), target=rpc_pb2.Compare.VALUE, value=value)
        )

    @staticmethod
    def lease(key: str, relation: Relation, lease_id: int) -> Compare:
        return Compare(
            rpc_pb2.Compare(key=encode_key(key), result=_result(relation), target=rpc_pb2.Compare.LEASE, lease=lease_id)
        )


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. etcd refuses to put the same key twice in one transaction."""

    proto: rpc_pb2.RequestOp

    @staticmethod
    def put(key: str, value: bytes, lease_id: int = 0) -> Op:
        put = rpc_pb2.PutRequest(key=encode_key(key), value=value, lease=lease_id)
        return Op(rpc_pb2.RequestOp(request_put=put))

    @staticmethod
    def get(key: str) -> Op:
        return Op(rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=encode_key(key))))

    @staticmethod
    def get_prefix(prefix: str, limit: int = 0) -> Op:
        start, end = prefix_range(prefix)
        request = rpc_pb2.RangeRequest(key=start, range_end=end, limit=limit)
        return Op(rpc_pb2.RequestOp(request_range=request))

    @staticmethod
    def delete(key: str) -> Op:
        request = rpc_pb2.DeleteRangeRequest(key=encode_key(key))
        return Op(rpc_pb2.RequestOp(request_delete_range=request))

    @staticmethod
    def delete_prefix(prefix: str) -> Op:
        start, end = prefix_range(prefix)
        request = rpc_pb2.DeleteRangeRequest(key=start, range_end=end)
        return Op(rpc_pb2.RequestOp(request_delete_range=request))

    @property
    def writes(self) -> bool:
        return not self.proto.HasField("request_range")


def build_txn(compare: list[Compare], success: list[Op], failure: list[Op]) -> rpc_pb2.TxnRequest:
    """Build the request. Raises :class:`InvalidRequest` above :data:`MAX_TXN_OPS` in any of the three lists."""
    for name, items in (("compare", compare), ("success", success), ("failure", failure)):
        if len(items) > MAX_TXN_OPS:
            raise InvalidRequest(
                "txn",
                "",
                f"{name}: {len(items)} operations, at most {MAX_TXN_OPS} fit",
                remedy=f"split it into transactions of at most {MAX_TXN_OPS}, each with its own comparisons",
            )
    return rpc_pb2.TxnRequest(
        compare=[c.proto for c in compare], success=[o.proto for o in success], failure=[o.proto for o in failure]
    )


def read_txn(response: rpc_pb2.TxnResponse) -> TxnResult:
    return TxnResult(response.succeeded, tuple(_read_op(op) for op in response.responses), response.header.revision)


def _read_op(op: rpc_pb2.ResponseOp) -> PutResult | DeleteResult | GetResult:
    match op.WhichOneof("response"):
        case "response_put":
            return PutResult(op.response_put.header.revision)
        case "response_delete_range":
            return DeleteResult(op.response_delete_range.deleted)
        case "response_range":
            return GetResult(tuple(KeyValue.from_proto(kv) for kv in op.response_range.kvs))
        case kind:
            raise TypeError(f"etcd answered a transaction with an unknown kind of response: {kind}")
