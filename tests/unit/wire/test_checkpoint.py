"""What agents say of checkpoints in memory: read from the client's own records, and which step all ranks hold."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from falcon_core.wire.saves import checkpoint as wire
from falcon_core.wire.saves.checkpoint import Held, buffer_bytes, newest_of_all, unpack_held
from tests.unit.client_format import client

WORD = st.integers(0, (1 << 64) - 1)
SHORT = st.integers(0, (1 << 32) - 1)


def commit(**changes: int) -> bytes:
    fields = {"generation": 3, "rank": 1, "world_size": 2, "step": 40, "sequence": 7, "unix_ns": 5_000_000_000}
    places = {"index_offset": 8192, "index_bytes": 100, "data_offset": 12288, "end": 20480, "index_crc": 1}
    made: bytes = client.pack_commit(client.Commit(**{**fields, **places, **changes}))
    return made


def test_agent_and_client_mean_the_same_record() -> None:
    assert unpack_held(commit()) == Held(1, 40, 5_000, 3)
    assert (wire.MAGIC, wire.VERSION, wire.COMMIT_BYTES) == (client.MAGIC, client.VERSION, client.RECORD_BYTES)


@given(st.integers(0, wire.COMMIT_BYTES - 1), st.integers(1, 255))
def test_a_record_with_a_changed_byte_is_none(at: int, change: int) -> None:
    raw = bytearray(commit())
    raw[at] ^= change
    assert unpack_held(bytes(raw)) is None


def loaded_page(**changes: int) -> bytes:
    record: bytes = client.pack_loaded(**{"generation": 3, "rank": 1, "step": 40, "source": 1, **changes})
    return bytes(wire.LOADED_OFFSET) + record.ljust(wire.PAGE_BYTES - wire.LOADED_OFFSET, b"\0")


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (client.NOTHING, "Nothing"),
        (client.FROM_MEMORY, "Memory"),
        (client.FROM_FOLDER, "Folder"),
        (client.FROM_REPLICA, "Replica"),
    ],
)
def test_agent_and_client_mean_the_same_place_of_what_was_loaded(source: int, named: str) -> None:
    found = wire.unpack_loaded(loaded_page(source=source))
    assert found == (3, wire.Loaded(1, 40, named))  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"source": 4}, {"step": 1 << 63}])
def test_what_cannot_have_been_loaded_is_none(changes: dict[str, int]) -> None:
    assert wire.unpack_loaded(loaded_page(**changes)) is None
    assert wire.unpack_loaded(bytes(wire.PAGE_BYTES)) is None
    assert wire.unpack_loaded(loaded_page()[:-1]) is None


def test_what_was_loaded_crosses_the_bus() -> None:
    loaded = [wire.Loaded(1, 40, "Copy", "uid-7"), wire.Loaded(2, 40, "Folder")]
    summary = Summary(pod_uid="p", sequence=1, unix_ns=1, generation=3, loaded=loaded)
    assert decode_summary(encode_summary(summary, ()), "p").loaded == loaded


@given(st.binary(max_size=4096))
def test_any_bytes_are_read_without_an_error(page: bytes) -> None:
    assert unpack_held(page) is None


@given(generation=WORD, rank=SHORT, step=WORD, unix_ns=WORD)
def test_what_is_read_can_be_reported_whatever_it_says(generation: int, rank: int, step: int, unix_ns: int) -> None:
    held = unpack_held(commit(generation=generation, rank=rank, step=step, unix_ns=unix_ns))
    checkpoints = [held] if held is not None else []
    summary = Summary(pod_uid="p", sequence=1, unix_ns=1, generation=1, checkpoints=checkpoints)
    assert decode_summary(encode_summary(summary, ()), "p").checkpoints == checkpoints


def test_a_report_without_them_takes_no_byte_for_them() -> None:
    summary = Summary(pod_uid="p", sequence=1, unix_ns=1, generation=1)
    assert len(msgspec.msgpack.decode(encode_summary(summary, ()))) == 8


@pytest.mark.parametrize(
    ("held", "newest"),
    [
        ([], None),
        ([Held(0, 20, 1)], None),
        ([Held(0, 20, 1), Held(1, 20, 3)], Held(0, 20, 1)),
        ([Held(0, 20, 1), Held(0, 40, 5), Held(1, 20, 3)], Held(0, 20, 1)),
        ([Held(0, 20, 1), Held(0, 40, 5), Held(1, 20, 3), Held(1, 40, 4)], Held(1, 40, 4)),
        ([Held(0, 40, 1, 1), Held(1, 40, 1, 2)], None),  # what one saved before a failure, and another after it
        ([Held(0, 20, 1), Held(7, 20, 1)], None),  # a rank that the job does not have
    ],
)
def test_the_newest_step_of_all_ranks(held: list[Held], newest: Held | None) -> None:
    assert newest_of_all(held, 2) == newest


@given(st.integers(0, 1 << 50), st.integers(1, 1024))
def test_all_buffers_fit_into_the_memory(memory: int, ranks: int) -> None:
    size = buffer_bytes(memory, ranks)
    assert size % wire.PAGE_BYTES == 0
    assert 2 * ranks * size <= memory < 2 * ranks * (size + wire.PAGE_BYTES)


def verified_page(**changes: int) -> bytes:
    """Return a buffer's first page, with the record "verified" of one chunk."""
    raw = commit(**changes)
    record: bytes = client.pack_verified(changes.get("sequence", 7), bytes(4))
    page = raw.ljust(wire.VERIFIED_OFFSET, b"\0") + record
    return page.ljust(wire.PAGE_BYTES, b"\0")


def test_agent_and_client_mean_the_same_parts() -> None:
    parts = wire.unpack_parts(verified_page(), 20480)
    assert parts is not None
    assert (parts.rank, parts.step, parts.generation, parts.sequence) == (1, 40, 3, 7)
    assert (parts.begin, parts.end, parts.chunk_bytes, parts.chunks) == (8192, 20480, client.CHUNK_BYTES, 1)
    assert wire.unpack_checks(bytes(4), parts) == (0,)
    assert wire.unpack_checks(b"\0\0\0\1", parts) is None
    assert wire.unpack_checks(bytes(8), parts) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"end": 20481},  # beyond the buffer
        {"chunk_bytes": 4096},
        {"chunk_bytes": 0},
        {"index_offset": 4096},  # over the table
        {"index_bytes": 4097},  # over the data
        {"rank": 2},  # of two
        {"end": 8192, "data_offset": 8192, "index_bytes": 0},  # nothing
    ],
)
def test_parts_that_cannot_be_are_refused(changes: dict[str, int]) -> None:
    assert wire.unpack_parts(verified_page(**changes), 20480) is None


def test_a_checkpoint_without_its_own_checksums_is_not_copied() -> None:
    assert wire.unpack_parts(commit().ljust(wire.PAGE_BYTES, b"\0"), 20480) is None
    of_before = verified_page()[: wire.VERIFIED_OFFSET] + verified_page(sequence=6)[wire.VERIFIED_OFFSET :]
    assert wire.unpack_parts(of_before, 20480) is None
