"""Transactions as they go to etcd."""

from __future__ import annotations

import pytest

from falcon_etcd import MAX_TXN_OPS, Compare, InvalidRequest, Op
from falcon_etcd._proto import rpc_pb2 as pb
from falcon_etcd._txn import build_txn, read_txn


def test_comparisons_name_target_and_relation() -> None:
    protos = [
        Compare.version("k", "==", 0).proto,
        Compare.create_revision("k", "!=", 1).proto,
        Compare.mod_revision("k", "<", 2).proto,
        Compare.value("k", ">", b"v").proto,
        Compare.lease("k", "==", 3).proto,
    ]
    assert [(p.target, p.result, p.WhichOneof("target_union")) for p in protos] == [
        (pb.Compare.VERSION, pb.Compare.EQUAL, "version"),
        (pb.Compare.CREATE, pb.Compare.NOT_EQUAL, "create_revision"),
        (pb.Compare.MOD, pb.Compare.LESS, "mod_revision"),
        (pb.Compare.VALUE, pb.Compare.GREATER, "value"),
        (pb.Compare.LEASE, pb.Compare.EQUAL, "lease"),
    ]
    assert {p.key for p in protos} == {b"k"}


def test_a_relation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"relation: '>=' is none of ==, !=, <, >"):
        Compare.version("k", ">=", 0)  # type: ignore[arg-type]


def test_only_reads_are_known_as_reads() -> None:
    reads = [Op.get("k"), Op.get_prefix("k", limit=3)]
    writes = [Op.put("k", b""), Op.delete("k"), Op.delete_prefix("k")]
    assert [op.writes for op in (*reads, *writes)] == [False, False, True, True, True]


def test_each_list_is_limited() -> None:
    compare, op = [Compare.version("k", "==", 0)] * MAX_TXN_OPS, [Op.get("k")] * MAX_TXN_OPS
    full = build_txn(compare, op, op)
    assert (len(full.compare), len(full.success), len(full.failure)) == (100, 100, 100)
    with pytest.raises(InvalidRequest, match=r"compare: 101 operations, at most 100 fit \(split"):
        build_txn([*compare, compare[0]], [], [])
    with pytest.raises(InvalidRequest, match="success: 101"):
        build_txn([], [*op, op[0]], [])
    with pytest.raises(InvalidRequest, match="failure: 101"):
        build_txn([], [], [*op, op[0]])


def test_an_unknown_response_is_not_swallowed() -> None:
    response = pb.TxnResponse(responses=[pb.ResponseOp(response_txn=pb.TxnResponse())])
    with pytest.raises(TypeError, match="response_txn"):
        read_txn(response)
