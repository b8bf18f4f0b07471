"""The layout of a checkpoint: what was written is read, and nothing else is taken for a checkpoint."""

from __future__ import annotations

import itertools
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.wire.saves.checkpoint import unpack_held, unpack_loaded
from tests.unit.client_format import client

CHUNK = 1 << 10
NUMBER = st.integers(0, 1 << 40)


def image(index: bytes = b"index", data: bytes = bytes(range(256)) * 20, **changes: Any) -> tuple[bytearray, Any]:
    """Return a whole checkpoint of small chunks, with its checksums, and its commit record."""
    begin = 2 * client.PAGE_BYTES
    commit = client.Commit(
        generation=1,
        rank=3,
        world_size=4,
        step=40,
        sequence=9,
        unix_ns=1,
        index_offset=begin,
        index_bytes=len(index),
        data_offset=begin + client.PAGE_BYTES,
        end=begin + client.PAGE_BYTES + len(data),
        index_crc=crc32(index),
        chunk_bytes=CHUNK,
    )._replace(**changes)
    raw = bytearray(commit.end)
    raw[begin : begin + len(index)] = index
    raw[commit.data_offset : commit.end] = data
    checks = client.pack_checks(map(crc32, client.chunks_of(memoryview(raw), commit)))
    raw[client.CHECKS_OFFSET : client.CHECKS_OFFSET + len(checks)] = checks
    verified = client.pack_verified(commit.sequence, checks)
    raw[client.VERIFIED_OFFSET : client.VERIFIED_OFFSET + len(verified)] = verified
    raw[: client.RECORD_BYTES] = client.pack_commit(commit)
    return raw, commit


def page(raw: bytearray) -> bytes:
    return bytes(raw[: client.PAGE_BYTES])


def test_a_whole_checkpoint_is_read() -> None:
    raw, commit = image()
    assert client.unpack_commit(page(raw), len(raw)) == commit
    assert client.is_verified(page(raw), commit)
    assert bytes(client.check_index(memoryview(raw), commit, "here")) == b"index"
    client.check_chunks(memoryview(raw), commit, "here")


@given(st.data())
def test_any_changed_byte_of_the_state_is_named_with_its_chunk(data: st.DataObject) -> None:
    raw, commit = image()
    at = data.draw(st.integers(commit.index_offset, commit.end - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    number = (at - commit.index_offset) // CHUNK + 1
    words = f"chunk {number} of {commit.chunks} of rank 3's checkpoint of step 40 in /here is damaged"
    with pytest.raises(client.DamagedError, match=words):
        client.check_chunks(memoryview(raw), commit, "/here")


def test_a_changed_index_is_refused_before_anything_reads_it() -> None:
    raw, commit = image()
    raw[commit.index_offset] ^= 1
    with pytest.raises(client.DamagedError, match="the index of rank 3's checkpoint of step 40"):
        client.check_index(memoryview(raw), commit, "here")


def test_a_changed_table_of_checksums_is_named() -> None:
    raw, commit = image()
    raw[client.CHECKS_OFFSET] ^= 1
    with pytest.raises(client.DamagedError, match="the table of checksums"):
        client.check_chunks(memoryview(raw), commit, "here")


def test_a_file_that_was_cut_holds_nothing() -> None:
    raw, commit = image()
    assert client.unpack_commit(page(raw), commit.end - 1) is None


@given(st.integers(0, 120))
def test_a_record_that_was_written_in_part_is_none(written: int) -> None:
    raw, commit = image()
    if written < client.RECORD_BYTES:
        raw[written : client.RECORD_BYTES] = bytes(client.RECORD_BYTES - written)
        assert client.unpack_commit(page(raw), len(raw)) is None
    else:
        assert client.unpack_commit(page(raw), len(raw)) == commit


def test_checksums_of_the_save_before_are_not_taken_for_this_ones() -> None:
    raw, commit = image()
    assert not client.is_verified(page(raw), commit._replace(sequence=10))


@given(
    index_offset=NUMBER, index_bytes=NUMBER, data_offset=NUMBER, end=NUMBER, chunk_bytes=st.integers(0, (1 << 32) - 1)
)
def test_a_record_whose_parts_lie_outside_is_none(**places: int) -> None:
    """Whoever can write a checksum of a record can write any record: no reader may follow it out of the file."""
    raw, commit = image()
    raw[: client.RECORD_BYTES] = client.pack_commit(commit._replace(**places))
    found = client.unpack_commit(page(raw), len(raw))
    if found is not None:
        assert client.CHECKS_OFFSET + 4 * found.chunks <= found.index_offset
        assert found.index_offset + found.index_bytes <= found.data_offset <= found.end <= len(raw)


@given(st.lists(st.binary(max_size=3000), max_size=8))
def test_checksums_of_a_stream_are_those_of_its_chunks(pieces: list[bytes]) -> None:
    sums = client.Sums(CHUNK)
    for piece in pieces:
        sums.add(memoryview(piece))
    whole = b"".join(pieces)
    expected = [crc32(whole[start : start + CHUNK]) for start in range(0, len(whole), CHUNK)]
    assert sums.table() == client.pack_checks(expected)


@given(sequence=NUMBER, generation=NUMBER, seconds=st.floats(-1.0, 1e9))
def test_what_a_save_and_a_load_took_is_read_by_the_agent(sequence: int, generation: int, seconds: float) -> None:
    raw, _ = image(sequence=sequence)
    records = {
        client.SAVING_OFFSET: client.pack_saving(sequence, seconds),
        client.LOADED_OFFSET: client.pack_loaded(generation=generation, rank=3, step=20, source=1),
        client.LOADING_OFFSET: client.pack_loading(generation, seconds),
    }
    for at, record in records.items():
        raw[at : at + len(record)] = record
    ends = sorted((at, at + len(record)) for at, record in records.items())
    assert all(end <= at for (_, end), (at, _) in itertools.pairwise([*ends, (client.FOLDER_OFFSET, 0)]))
    page = bytes(raw[: client.PAGE_BYTES])
    held, loaded = unpack_held(page), unpack_loaded(page)
    assert held is not None
    assert loaded is not None
    expected = min(max(0, round(seconds * 1e6)), (1 << 32) - 1)
    assert (held.saving_us, loaded[1].loading_us) == (expected, expected)


def test_what_another_save_took_is_not_told_of_this_one() -> None:
    raw, commit = image()
    record = client.pack_saving(commit.sequence - 2, 1.0)
    raw[client.SAVING_OFFSET : client.SAVING_OFFSET + len(record)] = record
    held = unpack_held(bytes(raw[: client.PAGE_BYTES]))
    assert held is not None
    assert held.saving_us == 0
