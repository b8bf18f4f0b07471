"""Lost connections and lost members: what is repeated, what is reported, and what the error says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from falcon_etcd import Client, Closed, TimedOut, Unavailable, WatchEvent
from falcon_etcd._pool import _OPTIONS
from tests.integration.etcd.watching import history, watching
from tests.integration.etcd_server import EtcdServer
from tests.integration.ports import free_port
from tests.integration.relay import Relay


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    """Yield three members with a leader."""
    server = EtcdServer(tmp_path, members=3)
    server.start()
    async with server.client() as client:
        await client.put("/ready", b"")
    yield server
    server.kill()


async def leader_of(server: EtcdServer, client: Client) -> str:
    """Return the leader's endpoint."""
    for member in server.members:
        status = await client.status(member.endpoint)
        if status.is_leader:
            return member.endpoint
    raise AssertionError("no leader")


async def until_leaderless(client: Client) -> None:
    while (await client.status()).leader_id:  # noqa: ASYNC110 - etcd offers no event for it
        await asyncio.sleep(0.02)


async def test_nobody_there(client: Client) -> None:
    """The error names the endpoints, the cause and the remedy; nothing was applied; it took no longer than allowed."""
    endpoints = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    async with Client(endpoints, call_timeout_seconds=0.5) as lonely:
        with pytest.raises(Unavailable, match=r"refused.*\(check that etcd runs") as caught:
            await lonely.put("/a", b"")
    assert not caught.value.maybe_applied
    assert all(endpoint in str(caught.value) for endpoint in endpoints)


async def test_closing_the_client_ends_the_wait_for_a_connection() -> None:
    async with Client([f"127.0.0.1:{free_port()}"], call_timeout_seconds=30) as lonely:
        waiting = [asyncio.create_task(lonely.get("/a")), asyncio.create_task(anext(lonely.watch_prefix("/a")))]
        await asyncio.sleep(0.1)
    for task in waiting:
        with pytest.raises(Closed, match="the client was closed"):
            await asyncio.wait_for(task, 5)


async def test_closing_the_client_ends_its_calls(etcd: EtcdServer, client: Client) -> None:
    await client.put("/a", b"")
    async with etcd.client(call_timeout_seconds=30) as closing:
        await closing.get("/a")
        etcd.pause()
        waiting = [asyncio.create_task(closing.get("/a")), asyncio.create_task(closing.put("/a", b""))]
        await asyncio.sleep(0.1)
    etcd.resume()
    for task in waiting:
        with pytest.raises(Closed, match="the client was closed"):
            await asyncio.wait_for(task, 5)


async def test_a_write_waits_for_etcd_to_come_back(etcd: EtcdServer, client: Client) -> None:
    await client.put("/a", b"1")
    etcd.stop()
    async with etcd.client() as writer:
        waiting = asyncio.create_task(writer.put("/a", b"2"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        etcd.start()
        await waiting
    kv = await client.get("/a")
    assert kv is not None
    assert (kv.value, kv.version) == (b"2", 2)


async def test_an_unanswered_write_is_not_repeated_and_says_so(etcd: EtcdServer, client: Client) -> None:
    async with Relay(etcd.endpoints[0]) as relay, Client([relay.endpoint]) as far:
        assert await far.get("/a") is None
        relay.hold_answers()
        put = asyncio.create_task(far.put("/a", b"1"))
        read = asyncio.create_task(far.get("/b"))
        assert isinstance(await anext(client.watch_prefix("/a", 2)), WatchEvent)
        await relay.cut()
        with pytest.raises(Unavailable, match="a write may have been applied") as caught:
            await put
        assert caught.value.maybe_applied
        await relay.restore()
        assert await read is None, "a read is repeated"
    kv = await client.get("/a")
    assert kv is not None
    assert kv.version == 1


async def test_a_call_ends_by_its_deadline(etcd: EtcdServer, client: Client) -> None:
    await client.put("/a", b"")
    etcd.pause()
    async with asyncio.timeout(4), etcd.client(call_timeout_seconds=0.3) as hasty:
        with pytest.raises(Unavailable) as caught:
            await hasty.put("/a", b"")
    assert not caught.value.maybe_applied, "never connected"
    etcd.resume()


@pytest.mark.parametrize("write", [True, False])
async def test_a_call_in_flight_ends_by_its_deadline(etcd: EtcdServer, write: bool) -> None:
    # One call on a connection: its deadline comes before the pings find a connection dead (3 s), two do not.
    async with etcd.client(call_timeout_seconds=2) as hasty:
        await hasty.put("/a", b"")
        etcd.pause()
        with pytest.raises(TimedOut, match="raise call_timeout_seconds") as caught:
            await (hasty.put("/a", b"") if write else hasty.get("/a"))
        assert caught.value.maybe_applied is write
    etcd.resume()


async def test_a_dead_connection_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the death of etcd's node: no reset comes, a new connection would work. Pings find out."""
    pings = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    faster = tuple((name, value // 10 if name in pings else value) for name, value in _OPTIONS)
    monkeypatch.setattr("falcon_etcd._pool._OPTIONS", faster)
    server = EtcdServer(tmp_path, arguments=["--grpc-keepalive-min-time", "10ms"])
    server.start()
    try:
        async with server.client() as near, Relay(server.endpoints[0]) as relay, Client([relay.endpoint]) as far:
            await near.put("/w/a", b"")
            async with watching(far, "/w/") as recording:
                relay.hold_answers()
                await near.put("/w/b", b"")
                await recording.until_key("/w/b")
                await far.put("/w/c", b"")
                await recording.until_key("/w/c")
            assert len(recording.listings) == 1
    finally:
        server.kill()


async def test_dead_endpoints_are_passed_over(etcd: EtcdServer) -> None:
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    async with Client([*dead, *etcd.endpoints]) as client:
        await client.put("/a", b"")
        assert (await client.status()).endpoint == etcd.endpoints[0]


async def test_the_leader_is_killed(three: EtcdServer) -> None:
    """A writer goes on, a watcher misses nothing, a lease lives; etcd's own history is the truth."""
    async with three.client() as patient, three.client(call_timeout_seconds=1.0) as client:
        start = await patient.put("/w/first", b"")
        leader = await leader_of(three, patient)
        # the watcher's first choice is the leader, so that its stream breaks
        order = [leader, *(endpoint for endpoint in three.endpoints if endpoint != leader)]
        async with (
            Client(order) as watcher,
            watching(watcher, "/w/") as recording,
            await watcher.lease(2) as lease,
        ):
            await patient.put("/alive", b"", lease.id)
            for number in range(20):
                await patient.put(f"/w/{number}", b"")
            three.kill(three.member_at(leader))
            for number in range(20, 60):
                with contextlib.suppress(Unavailable):
                    await client.put(f"/w/{number}", b"")
                await asyncio.sleep(0.01)
            truth = await history(client, "/w/", start + 1)
            await recording.until_key("/w/\uffff-end")
            assert len(recording.listings) == 1
            assert recording.changes[:-1] == truth
            assert (await watcher.status()).endpoint != leader
            await asyncio.sleep(2.5)
            assert await client.get("/alive") is not None
            assert not lease.lost.is_set()


async def test_a_member_that_hangs_is_left(three: EtcdServer) -> None:
    """Its connection stays open; a read spends half of its time there, then asks another, as do all later calls."""
    async with three.client() as client:
        leader = await leader_of(three, client)
        hanging = next(member for member in three.members if member.endpoint != leader)
        async with (
            Relay(leader) as relay,
            Client([hanging.endpoint, relay.endpoint], call_timeout_seconds=4.0) as stuck,
        ):
            await relay.cut()  # the first that is connected is used
            assert (await stuck.status()).endpoint == hanging.endpoint
            await relay.restore()
            await stuck.status(relay.endpoint)
            three.pause(hanging)
            assert await stuck.get("/ready") is not None
            await stuck.put("/a", b"")
            assert (await stuck.status()).endpoint == relay.endpoint
        three.resume(hanging)


async def test_without_a_quorum_nothing_was_applied(three: EtcdServer) -> None:
    """A member that knows no leader refuses the write, and what it refused is never applied."""
    survivor, *killed = three.members
    async with Client([survivor.endpoint], call_timeout_seconds=1.5) as client:
        await client.put("/a", b"1")
        three.kill(*killed)
        refused = await refused_put(client)
        three.start(*killed)
    async with three.client() as client:
        kv = await client.get("/a")
        assert kv is not None
        assert kv.value == b"1"
        assert await client.get(refused) is None


async def refused_put(client: Client) -> str:
    """Write a key at a time until a member refuses one for want of a leader; return that key.

    A member that reads the dead leader's last heartbeat late follows it for one more election timeout. A write that
    begins in that time waits for an answer, and the client cannot say whether it was applied.
    """
    for attempt in range(20):
        await until_leaderless(client)
        key = f"/refused-{attempt}"
        with pytest.raises(Unavailable) as caught:
            await client.put(key, b"2")
        if not caught.value.maybe_applied:
            assert "no leader" in str(caught.value)
            return key
    raise AssertionError("no write was refused for want of a leader")
