"""Watches: every event once and in order, over restarts and cuts; a new listing where that cannot be had."""

from __future__ import annotations

import asyncio

import pytest

from falcon_etcd import Client, Closed, Compare, Op, Relisted, Unavailable, WatchEvent
from tests.integration.etcd.watching import history, watching
from tests.integration.etcd_server import EtcdServer
from tests.integration.relay import Relay


async def test_a_watch_begins_with_a_listing(client: Client) -> None:
    revision = await client.put("/w/old", b"1")
    async with watching(client, "/w/") as recording:
        (listing,) = recording.listings
        assert [(kv.key, kv.value) for kv in listing.kvs] == [("/w/old", b"1")]
        assert listing.revision == revision
        await client.put("/x/elsewhere", b"")
        await client.txn([Compare.version("/w/new", "==", 0)], [Op.put("/w/new", b"2"), Op.delete("/w/old")])
        await recording.until(lambda r: len(r.changes) == 2)
        assert recording.changes == [
            (revision + 2, "put", "/w/new", b"2"),
            (revision + 2, "delete", "/w/old", b""),
        ]


async def test_a_watch_can_begin_in_the_past_and_show_what_was_before(client: Client) -> None:
    first = await client.put("/w/a", b"1")
    await client.put("/w/a", b"2")
    await client.delete("/w/a")
    events = []
    async for event in client.watch_prefix("/w/", first, with_previous=True):
        assert isinstance(event, WatchEvent)
        events.append((event.type, event.kv.value, event.previous and event.previous.value))
        if len(events) == 3:
            break
    assert events == [("put", b"1", None), ("put", b"2", b"1"), ("delete", b"", b"2")]


async def test_a_start_that_was_compacted_becomes_a_listing(client: Client) -> None:
    first = await client.put("/w/a", b"1")
    last = await client.put("/w/a", b"2")
    await client.compact(last)
    async for event in client.watch_prefix("/w/", first):
        assert isinstance(event, Relisted)
        assert [kv.value for kv in event.kvs] == [b"2"]
        break


async def test_no_event_is_lost_or_doubled_over_a_kill(etcd: EtcdServer, client: Client) -> None:
    """A writer and a watcher, while etcd is killed and restarted twice under them; etcd's own history is the truth."""
    start = await client.put("/w/first", b"")
    failures: list[Unavailable] = []

    async def write() -> None:
        for number in range(400):
            try:
                await client.put(f"/w/{number:03}", str(number).encode())
                if number % 3 == 0:
                    await client.delete(f"/w/{number:03}")
            except Unavailable as error:
                failures.append(error)
            await asyncio.sleep(0.002)

    async with watching(client, "/w/") as recording, asyncio.TaskGroup() as group:
        writer = group.create_task(write())
        for _ in range(2):
            await asyncio.sleep(0.3)
            assert not writer.done()
            etcd.kill()
            etcd.start()
            await asyncio.sleep(0.5)
        await writer
        truth = await history(client, "/w/", start + 1)
        await recording.until_key("/w/\uffff-end")
    assert len(recording.listings) == 1
    assert len(truth) > 400
    assert recording.changes[:-1] == truth
    assert all(error.maybe_applied for error in failures), "what was never sent is repeated, not raised"


async def test_a_cut_connection_resumes_where_it_was(etcd: EtcdServer, client: Client) -> None:
    async with Relay(etcd.endpoints[0]) as relay, Client([relay.endpoint]) as far:
        await client.put("/w/0", b"")
        async with watching(far, "/w/") as recording:
            for number in range(1, 6):
                await relay.cut()
                await client.put(f"/w/{number}", b"")
                await relay.restore()
                await recording.until_key(f"/w/{number}")
        assert [c[2] for c in recording.changes] == [f"/w/{number}" for number in range(1, 6)]
        assert len(recording.listings) == 1


async def test_compaction_during_a_cut_becomes_a_listing(etcd: EtcdServer, client: Client) -> None:
    async with Relay(etcd.endpoints[0]) as relay, Client([relay.endpoint]) as far:
        await client.put("/w/stays", b"")
        await client.put("/w/goes", b"")
        async with watching(far, "/w/") as recording:
            await relay.cut()
            await client.delete("/w/goes")
            await client.compact(await client.put("/w/comes", b""))
            await relay.restore()
            await recording.until(lambda r: len(r.listings) == 2)
            assert {kv.key for kv in recording.listings[1].kvs} == {"/w/stays", "/w/comes"}
            await client.put("/w/then", b"")
            await recording.until_key("/w/then")
        assert [c[2] for c in recording.changes] == ["/w/then"]


async def test_lost_data_becomes_a_listing(etcd: EtcdServer, client: Client) -> None:
    await client.put("/w/a", b"")
    async with watching(client, "/w/") as recording:
        etcd.wipe()
        etcd.start()
        await recording.until(lambda r: len(r.listings) == 2)
        assert recording.listings[1].kvs == ()
        await client.put("/w/b", b"")
        await recording.until_key("/w/b")


@pytest.mark.parametrize("token", ["falcon-test", "another"])
async def test_lost_data_is_noticed_even_when_revisions_have_grown_past(
    etcd: EtcdServer, client: Client, token: str
) -> None:
    """With the same token the new cluster has the same id, and its revision did not fall: only the witness tells."""
    async with Relay(etcd.endpoints[0]) as relay, Client([relay.endpoint]) as far:
        await client.put("/w/a", b"old")
        async with watching(far, "/w/") as recording:
            await relay.cut()
            etcd.wipe()
            etcd.token = token
            etcd.start()
            assert await client.get("/w/a") is None  # a read is repeated until etcd is back
            for number in range(10):
                await client.put("/w/a", f"new {number}".encode())
            await relay.restore()
            await recording.until(lambda r: len(r.listings) == 2)
            assert [kv.value for kv in recording.listings[1].kvs] == [b"new 9"]
        assert recording.changes == []


async def test_a_watch_that_saw_nothing_lists_again_after_a_cut(etcd: EtcdServer, client: Client) -> None:
    async with (
        Relay(etcd.endpoints[0]) as relay,
        Client([relay.endpoint]) as far,
        watching(far, "/w/") as recording,
    ):
        await relay.cut()
        await client.put("/w/a", b"")
        await relay.restore()
        await recording.until_key("/w/a")


async def test_a_silent_server_is_left(etcd: EtcdServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers stop but the connection stays open: the progress request finds out."""
    monkeypatch.setattr("falcon_etcd._watch._QUIET_SECONDS", 0.2)
    async with Relay(etcd.endpoints[0]) as relay, Client([relay.endpoint], call_timeout_seconds=1.0) as far:
        await client.put("/w/a", b"")
        async with watching(far, "/w/") as recording:
            relay.hold_answers()
            await client.put("/w/b", b"")
            await asyncio.sleep(1.0)
            await relay.cut()
            await relay.restore()
            await recording.until_key("/w/b")
        assert [c[2] for c in recording.changes] == ["/w/b"]


async def test_progress_carries_a_quiet_watch_over_compaction(
    etcd: EtcdServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write and compact; a watch that asks for progress is not behind when its connection breaks."""
    monkeypatch.setattr("falcon_etcd._watch._QUIET_SECONDS", 0.2)
    await client.put("/w/a", b"")
    async with (
        Relay(etcd.endpoints[0]) as relay,
        Client([relay.endpoint]) as far,
        watching(far, "/w/") as recording,
    ):
        for _ in range(20):
            revision = await client.put("/elsewhere", b"")
        await asyncio.sleep(2.5)  # a few answers of progress
        await client.compact(revision - 5)
        await relay.cut()
        await client.put("/w/b", b"")
        await relay.restore()
        await recording.until_key("/w/b")
        assert len(recording.listings) == 1
        assert [c[2] for c in recording.changes] == ["/w/b"]


async def test_closing_the_client_ends_its_watches(etcd: EtcdServer) -> None:
    async with etcd.client() as client:
        listed = asyncio.Event()

        async def consume() -> None:
            async for _ in client.watch_prefix("/w/"):
                listed.set()

        task = asyncio.create_task(consume())
        await asyncio.wait_for(listed.wait(), 10)
    with pytest.raises(Closed, match="the client"):
        await asyncio.wait_for(task, 10)
