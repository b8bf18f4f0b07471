"""A function that a later release of NCCL brings is noticed. Real releases: tests/integration/shim."""

from __future__ import annotations

from dev.nccl_coverage import faults, must_be_seen, prototypes, shims_table

HEADER = """
/* in place: ncclOld(int a); */
ncclResult_t  ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
    ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
    ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllToAllV(const void* sendbuff, ncclComm_t comm, cudaStream_t stream); // new
ncclResult_t ncclCommJoin(ncclComm_t *newcomm);
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t ncclPutSignal(const void* buff, ncclComm_t comm, cudaStream_t stream);
"""


def test_what_puts_work_on_a_stream_or_makes_a_communicator_must_be_hooked_or_ignored_with_a_reason() -> None:
    declared = prototypes([HEADER])
    assert "ncclOld" not in declared
    assert not faults(["ncclSend", "ncclCommCount", "ncclPutSignal"], declared, shims_table())
    found = faults([*declared, "ncclUndeclared"], declared, shims_table())
    assert [line.split("(")[0] for line in found] == ["ncclAllToAllV", "ncclCommJoin", "ncclUndeclared"]
    assert must_be_seen(None), "its parameters are unknown"


def test_a_hook_whose_arguments_lie_elsewhere_is_named() -> None:
    (line,) = faults(["ncclSend"], {"ncclSend": "const void* sendbuff, int peer, size_t count"}, shims_table())
    assert line.startswith("ncclSend: the hook takes (send, count, type, peer, comm, stream), the release (const void*")


def test_the_table_holds_what_the_shim_hooks() -> None:
    table = shims_table()
    assert table.of("ncclAllReduceConfig") == table.of("ncclCommGrow") == table.of("ncclGroupEnd") == "hooked"
    assert table.of("ncclWaitSignal").startswith("ignored: one-sided")
    assert all(table.ignored.values())
