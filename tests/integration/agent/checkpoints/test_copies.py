"""Copies of checkpoints between agents over real mutual TLS: whole or not there, whatever happens on the way."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from falcon_agent.checkpoint import protocol, replication
from falcon_agent.checkpoint.client import Peer, fetch, offered, put
from falcon_agent.checkpoint.protocol import PeerError
from falcon_agent.checkpoint.server import HANDSHAKES, Copies, Holder
from falcon_core.wire.saves.checkpoint import (
    CHECKS_OFFSET,
    LOADED_OFFSET,
    NOTES_OFFSET,
    PAGE_BYTES,
    VERIFIED_OFFSET,
    Held,
    unpack_parts,
)
from falcon_operator.bus import certs
from tests.integration.pki import Issued, Pki
from tests.unit.client_format import client

JOB, OTHER = "0b2f8f4e-1d0c-4c1b-9a55-3f6a1f0f5f11", "7d9c2f4e-1d0c-4c1b-9a55-3f6a1f0f5f22"
MIB = 1 << 20
SIZE = 40 * MIB
CHUNKED = 36 * MIB  # three chunks of the client's, the last of them shorter


def fill(
    path: Path, step: int, *, rank: int = 0, sequence: int | None = None, length: int = CHUNKED, generation: int = 1
) -> bytes:
    """Make a buffer with a checkpoint in the client's own format; return the buffer's bytes."""
    begin = client.index_offset(SIZE)
    commit = client.Commit(
        generation=generation,
        rank=rank,
        world_size=4,
        step=step,
        sequence=step if sequence is None else sequence,
        unix_ns=step * 1_000_000_000,
        index_offset=begin,
        index_bytes=100,
        data_offset=begin + PAGE_BYTES,
        end=begin + length,
        index_crc=0,
    )
    content = bytearray(SIZE)
    content[begin : commit.end] = os.urandom(length)
    checks = client.pack_checks(map(zlib.crc32, client.chunks_of(memoryview(content), commit)))
    for at, part in (
        (0, client.pack_commit(commit)),
        (VERIFIED_OFFSET, client.pack_verified(commit.sequence, checks)),
        (CHECKS_OFFSET, checks),
    ):
        content[at : at + len(part)] = part
    path.write_bytes(content)
    return bytes(content)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def empty(path: Path) -> Path:
    path.write_bytes(bytes(SIZE))
    return path


class Site:
    """A holder that runs, for ranks 0 and 1, and what a caller needs to reach it."""

    def __init__(self, folder: Path) -> None:
        self.pki = Pki(folder / "pki")
        (folder / "copies").mkdir()
        self.copies = Copies(folder / "copies", 2, SIZE)
        self.copies.make()
        self.wards = {0, 1}
        self.trust = self.context(protocol.server_context)
        self.holder = Holder(self.copies, JOB, lambda: self.trust, lambda: self.wards)
        self.port = 0

    def context(
        self, make: Callable[[Path, Path, Path], ssl.SSLContext], issued: Issued | None = None
    ) -> ssl.SSLContext:
        issued = self.pki.server(JOB) if issued is None else issued
        return make(self.pki.ca, issued.cert, issued.key)

    def peer(self, issued: Issued | None = None) -> Peer:
        context = self.context(protocol.client_context, issued)
        return Peer(host="127.0.0.1", port=self.port, job_uid=JOB, context=context)

    def steps(self, rank: int = 0) -> list[int]:
        return sorted(held.step for held in self.copies.held() if held.rank == rank)


async def copy(site: Site, own: Path, step: int) -> bytes:
    """Save a step and have the holder take it; return the buffer's bytes."""
    saved = fill(own, step)
    assert await put(site.peer(), own)
    return saved


async def filled(peer: Peer, rank: int, buffers: list[Path]) -> list[int]:
    """Fill buffers with what the holder has of a rank; return the steps."""
    found = await offered(peer, rank, SIZE)
    for parts, buffer in zip(found, buffers, strict=True):
        page = await fetch(peer, parts, buffer)
        with buffer.open("r+b") as file:
            assert file.read(PAGE_BYTES) == bytes(PAGE_BYTES), "it holds nothing until all have arrived"
            file.seek(0)
            file.write(page)
    return [parts.step for parts in found]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    made.port = await made.holder.start("127.0.0.1")
    yield made
    made.holder.close()


async def test_what_comes_back_is_what_was_copied_byte_for_byte(site: Site, tmp_path: Path) -> None:
    own = [tmp_path / "own.0", tmp_path / "own.1"]
    originals = {step: fill(path, step) for step, path in zip((20, 40), own, strict=True)}
    for path in own:
        assert await put(site.peer(), path)
    assert set(site.copies.held()) == {Held(0, 20, 20_000, 1), Held(0, 40, 40_000, 1)}
    fresh = [empty(tmp_path / "fresh.0"), empty(tmp_path / "fresh.1")]
    assert await filled(site.peer(), 0, fresh) == [40, 20]
    assert [path.read_bytes() for path in fresh] == [originals[40], originals[20]]


async def test_the_newest_copy_stays_while_the_next_is_written(site: Site, tmp_path: Path) -> None:
    own = tmp_path / "own"
    for step in (20, 40, 60):
        await copy(site, own, step)
    assert site.steps() == [40, 60]


async def test_a_copy_that_is_there_is_not_sent_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    await copy(site, own, 20)
    monkeypatch.setattr(protocol, "send_body", None)
    assert await put(site.peer(), own)


async def test_a_checkpoint_with_other_notes_is_the_same_and_its_copy_stays_as_the_one_sent_last(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart from a step before the newest: the rank notes what it has loaded, and goes on from there."""
    older, newer = tmp_path / "own.0", tmp_path / "own.1"
    await copy(site, older, 20)
    await copy(site, newer, 40)
    with older.open("r+b") as file:
        file.seek(LOADED_OFFSET)
        file.write(client.pack_loaded(generation=2, rank=0, step=20, source=1))
    with monkeypatch.context() as patched:
        patched.setattr(protocol, "send_body", None)
        assert await put(site.peer(), older)
    assert site.steps() == [20, 40]
    await copy(site, newer, 60)
    assert site.steps() == [20, 60], "the step that all ranks have loaded is not written over"


async def test_notes_that_a_rank_adds_meanwhile_do_not_spoil_a_copy(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, sends = tmp_path / "own", protocol.send
    fill(own, 20)

    async def noted(writer: asyncio.StreamWriter, data: bytes) -> None:
        await sends(writer, data)
        with own.open("r+b") as file:
            file.seek(NOTES_OFFSET)
            file.write(client.pack_notes(listens=True, in_folder=20, replicated=False))

    monkeypatch.setattr(protocol, "send", noted)
    assert await put(site.peer(), own)


async def test_numbers_that_begin_again_leave_the_older_life_behind(site: Site, tmp_path: Path) -> None:
    own = tmp_path / "own"
    for step in (480, 500):
        await copy(site, own, step)
    for step in (20, 40):
        fill(own, step, generation=2)
        assert await put(site.peer(), own)
    assert site.steps() == [20, 40]


async def test_a_holder_that_starts_again_knows_which_copy_was_sent_last(site: Site, tmp_path: Path) -> None:
    older, newer = tmp_path / "own.0", tmp_path / "own.1"
    await copy(site, older, 20)
    await copy(site, newer, 40)
    assert await put(site.peer(), older)
    site.copies.make()
    await copy(site, newer, 60)
    assert site.steps() == [20, 60]


async def test_a_buffer_that_is_overwritten_meanwhile_becomes_no_copy(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    await copy(site, own, 20)
    fill(own, 40)
    sends, pieces = protocol.send, []

    async def overwritten(writer: asyncio.StreamWriter, data: bytes) -> None:
        await sends(writer, data)
        if len(data) == protocol.PIECE_BYTES:
            pieces.append(data)
            if len(pieces) == 2:  # the next save begins as the client's does: it clears the records
                with own.open("r+b") as file:
                    file.write(bytes(PAGE_BYTES))

    monkeypatch.setattr(protocol, "send", overwritten)
    assert await put(site.peer(), own) is False
    assert len(pieces) > 2
    monkeypatch.undo()
    assert site.steps() == [20]


@pytest.mark.parametrize("at", [CHECKS_OFFSET + 5, 20 * MIB])
async def test_a_flipped_bit_is_refused_by_the_holder_and_by_who_fetches(site: Site, tmp_path: Path, at: int) -> None:
    own = tmp_path / "own"
    fill(own, 20)
    flip(own, at)
    with pytest.raises(PeerError):
        await put(site.peer(), own)
    assert site.steps() == []

    await copy(site, own, 40)
    flip(site.copies.of(0)[0], at)
    fresh = empty(tmp_path / "fresh")
    with pytest.raises(PeerError, match="damaged"):
        await filled(site.peer(), 0, [fresh])
    assert fresh.read_bytes()[:PAGE_BYTES] == bytes(PAGE_BYTES), "it holds nothing"


async def test_a_holder_that_is_lost_during_the_copy_is_told(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    fill(own, 20)
    receives = protocol.receive_body

    async def lost(reader: asyncio.StreamReader, file: int, page: bytes, parts: object) -> None:
        raise PeerError("the holder's end")

    monkeypatch.setattr(protocol, "receive_body", lost)
    with pytest.raises(PeerError):
        await put(site.peer(), own)
    monkeypatch.setattr(protocol, "receive_body", receives)
    assert await put(site.peer(), own), "begun anew"
    site.holder.close()
    with pytest.raises(PeerError, match="cannot be reached"):
        await filled(site.peer(), 0, [empty(tmp_path / "fresh")])


async def test_copies_of_former_wards_make_room_and_others_never(site: Site, tmp_path: Path) -> None:
    own = tmp_path / "own"
    for rank in (0, 1):
        for step in (20, 40):
            fill(own, step, rank=rank)
            assert await put(site.peer(), own)
    fill(own, 20, rank=2)
    with pytest.raises(PeerError, match="does not take copies of rank 2"):
        await put(site.peer(), own)
    site.wards = {1, 2}
    assert await put(site.peer(), own)
    assert (site.steps(0), site.steps(1), site.steps(2)) == ([40], [20, 40], [20])


async def test_another_jobs_certificate_opens_nothing(site: Site, tmp_path: Path) -> None:
    own = tmp_path / "own"
    fill(own, 20)
    with pytest.raises(PeerError):
        await put(site.peer(site.pki.server(OTHER)), own)
    stranger = Pki(tmp_path / "stranger").server(JOB)
    with pytest.raises(PeerError):
        await put(site.peer(stranger), own)
    assert site.steps() == []
    with pytest.raises(PeerError, match="not of this job"):
        await put(Peer(host="127.0.0.1", port=site.port, job_uid=OTHER, context=site.peer().context), own)


async def test_the_certificate_that_the_operator_issues_to_a_job_opens_both_sides(site: Site, tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    jobs = certs.new_authority(now, certs.JOBS)
    pair = certs.issue_agents(jobs, JOB, now)
    files = ca, cert, key = tmp_path / "jobs-ca.crt", tmp_path / "tls.crt", tmp_path / "tls.key"
    for path, content in zip(files, (jobs.cert, pair.cert, pair.key), strict=True):
        path.write_bytes(content)
    holder = Holder(site.copies, JOB, lambda: protocol.server_context(ca, cert, key), lambda: site.wards)
    port = await holder.start("127.0.0.1")
    peer = Peer(host="127.0.0.1", port=port, job_uid=JOB, context=protocol.client_context(ca, cert, key))
    own = tmp_path / "own"
    saved = fill(own, 20)
    assert await put(peer, own)
    fresh = empty(tmp_path / "fresh")
    assert await filled(peer, 0, [fresh]) == [20]
    assert fresh.read_bytes() == saved
    holder.close()


async def test_a_peer_of_an_authority_that_has_left_gets_no_copies(site: Site, tmp_path: Path) -> None:
    """The agent's own certificate follows the file; its trust does too, though contexts only ever learn authorities."""
    jobs, now = tmp_path / "jobs", dt.datetime.now(dt.UTC)
    jobs.mkdir()
    former, newest = certs.new_authority(now, certs.JOBS), certs.new_authority(now, certs.JOBS)

    def place(folder: Path, by: certs.Pair, trusted: bytes) -> None:
        folder.mkdir(exist_ok=True)
        pair = certs.issue_agents(by, JOB, now)
        for file, content in zip(replication.credentials(folder), (trusted, pair.cert, pair.key), strict=True):
            file.write_bytes(content)

    place(jobs, former, former.cert)
    thief = tmp_path / "thief"
    place(thief, former, former.cert + newest.cert)
    certificate = replication.Certificate(jobs)
    holder = Holder(site.copies, JOB, lambda: certificate.context, lambda: site.wards)
    port = await holder.start("127.0.0.1")

    def peer(folder: Path) -> Peer:
        context = protocol.client_context(*replication.credentials(folder))
        return Peer(host="127.0.0.1", port=port, job_uid=JOB, context=context)

    own = tmp_path / "own"
    fill(own, 20)
    place(jobs, newest, newest.cert + former.cert)
    certificate.renew()
    assert await put(peer(thief), own)
    place(jobs, newest, newest.cert)
    certificate.renew()
    with pytest.raises(PeerError):
        await put(peer(thief), own)
    assert await put(peer(jobs), own)
    holder.close()


async def test_a_certificate_for_clients_alone_holds_no_copies(site: Site, tmp_path: Path) -> None:
    own = tmp_path / "own"
    fill(own, 20)
    context = site.context(protocol.server_context, site.pki.client(JOB))
    holder = Holder(site.copies, JOB, lambda: context, lambda: site.wards)
    port = await holder.start("127.0.0.1")
    with pytest.raises(PeerError, match="cannot be reached"):
        await put(Peer(host="127.0.0.1", port=port, job_uid=JOB, context=site.peer().context), own)
    holder.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        protocol.REQUEST.pack(protocol.MAGIC, 9, protocol.PUT, 0),
        protocol.REQUEST.pack(protocol.MAGIC, 1, 7, 0),
        protocol.REQUEST.pack(protocol.MAGIC, 1, protocol.PUT, 0) + os.urandom(PAGE_BYTES),
        protocol.REQUEST.pack(protocol.MAGIC, 1, protocol.GET, 1 << 31),
    ],
)
async def test_nonsense_harms_nothing(site: Site, tmp_path: Path, said: bytes) -> None:
    own = tmp_path / "own"
    await copy(site, own, 20)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=site.peer().context)
    writer.write(said)
    await writer.drain()
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    assert answer in (b"", bytes([protocol.REFUSED]), protocol.NUMBER.pack(0))
    assert site.steps() == [20]
    assert await filled(site.peer(), 0, [empty(tmp_path / "fresh")]) == [20]


async def test_a_checkpoint_that_says_it_is_larger_than_the_file_is_refused(site: Site, tmp_path: Path) -> None:
    own = tmp_path / "own"
    content = bytearray(fill(own, 20))
    content += bytes(SIZE)
    parts = client.unpack_commit(bytes(content[:PAGE_BYTES]), len(content))
    grown = client.pack_commit(parts._replace(end=2 * SIZE))
    checks = bytes(4 * parts._replace(end=2 * SIZE).chunks)
    content[: len(grown)] = grown
    content[VERIFIED_OFFSET : VERIFIED_OFFSET + len(grown)] = bytes(len(grown))
    verified = client.pack_verified(parts.sequence, checks)
    content[VERIFIED_OFFSET : VERIFIED_OFFSET + len(verified)] = verified
    own.write_bytes(content)
    with pytest.raises(PeerError, match="does not take"):
        await put(site.peer(), own)


@pytest.mark.parametrize("put_there", ["link", "pipe"])
async def test_what_is_no_buffer_is_not_read(site: Site, tmp_path: Path, put_there: str) -> None:
    own = tmp_path / "own"
    if put_there == "link":
        own.symlink_to("/etc/passwd")
    else:
        os.mkfifo(own)
    with pytest.raises(OSError):
        await put(site.peer(), own)


HELLO = bytes([22, 3, 1, 0x3F, 0xF0, 1, 0, 0x3F, 0xEC, 3, 3]) + bytes(4096)  # the beginning of a TLS handshake


@pytest.mark.parametrize("said", [b"", HELLO], ids=["nothing", "half a handshake"])
async def test_strangers_without_a_certificate_keep_nobody_out(site: Site, tmp_path: Path, said: bytes) -> None:
    """Four pods open connections and end no handshake; the peer gives and fetches copies meanwhile."""
    loop = asyncio.get_running_loop()
    strangers = []
    with contextlib.ExitStack() as stack:
        for number in range(160):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.bind((f"127.0.1.{1 + number % 4}", 0))
            await loop.sock_connect(stranger, ("127.0.0.1", site.port))
            strangers.append(stranger)
            with contextlib.suppress(OSError):  # its place was taken already
                stranger.send(said)
        saved = await copy(site, tmp_path / "own", 20)
        assert sum(map(_is_open, strangers)) <= HANDSHAKES.places
        fresh = empty(tmp_path / "fresh")
        assert await filled(site.peer(), 0, [fresh]) == [20]
    assert fresh.read_bytes() == saved


def _is_open(client: socket.socket) -> bool:
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def test_strangers_cut_off_no_transfer(site: Site, tmp_path: Path) -> None:
    """A peer that shows the job's certificate keeps its connection, however many handshakes begin."""
    loop = asyncio.get_running_loop()
    own = tmp_path / "own"
    page = fill(own, 20)[:PAGE_BYTES]
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=site.peer().context)
    writer.write(protocol.REQUEST.pack(protocol.MAGIC, protocol.VERSION, protocol.PUT, 0) + page)
    assert await reader.readexactly(1) == bytes([protocol.OK])
    with contextlib.ExitStack() as stack:
        for number in range(120):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.bind((f"127.0.1.{1 + number % 4}", 0))
            await loop.sock_connect(stranger, ("127.0.0.1", site.port))
        parts = unpack_parts(page, SIZE)
        assert parts is not None
        with own.open("rb") as file:
            await protocol.send_body(writer, file.fileno(), parts)
        assert await reader.readexactly(1) == bytes([protocol.OK])
    writer.close()
    assert site.steps() == [20]
