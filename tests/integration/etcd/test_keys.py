"""Keys and transactions against a real etcd."""

from __future__ import annotations

import pytest

from falcon_etcd import (
    MAX_TXN_OPS,
    Client,
    Compacted,
    Compare,
    DeleteResult,
    FutureRevision,
    GetResult,
    InvalidRequest,
    KeyValue,
    Op,
    PutResult,
)


async def test_a_key_lives_through_put_get_delete(client: Client) -> None:
    assert await client.get("/a") is None
    created = await client.put("/a", b"one")
    changed = await client.put("/a", b"\x00\xff")
    assert await client.get("/a") == KeyValue("/a", b"\x00\xff", created, changed, version=2, lease=0)
    assert (await client.get("/a", revision=created)) == KeyValue("/a", b"one", created, created, 1, 0)
    assert await client.delete("/a") == 1
    assert await client.delete("/a") == 0
    assert await client.get("/a") is None


async def test_a_prefix_lists_and_deletes_its_keys_alone(client: Client) -> None:
    for key in ("/a/2", "/a/1", "/a0", "/b/1", "/a/é"):
        await client.put(key, key.encode())
    listing = await client.get_prefix("/a/")
    assert [kv.key for kv in listing.kvs] == ["/a/1", "/a/2", "/a/é"]
    assert listing.revision == (await client.status()).revision
    assert [kv.key for kv in (await client.get_range("/a/2", "/b")).kvs] == ["/a/2", "/a/é", "/a0"]
    assert len((await client.get_prefix("")).kvs) == 5
    assert await client.delete_prefix("/a/") == 3
    assert [kv.key for kv in (await client.get_prefix("")).kvs] == ["/a0", "/b/1"]


async def test_deleting_every_key_is_refused(client: Client) -> None:
    await client.put("/a", b"")
    with pytest.raises(InvalidRequest, match="name the prefix"):
        await client.delete_prefix("")
    assert await client.get("/a") is not None


async def test_a_long_listing_is_one_snapshot(client: Client) -> None:
    """2 500 keys take three pages."""
    for first in range(0, 2_500, MAX_TXN_OPS):
        await client.txn(success=[Op.put(f"/k/{n:04}", b"v") for n in range(first, first + MAX_TXN_OPS)])
    listing = await client.get_prefix("/k/")
    assert [kv.key for kv in listing.kvs] == [f"/k/{n:04}" for n in range(2_500)]
    assert not listing.more
    limited = await client.get_prefix("/k/", limit=1_200)
    assert (len(limited.kvs), limited.more) == (1_200, True)
    await client.delete_prefix("/k/")
    assert len((await client.get_prefix("/k/", revision=listing.revision)).kvs) == 2_500


async def test_a_transaction_applies_one_branch(client: Client) -> None:
    revision = await client.put("/a", b"1")
    result = await client.txn(
        compare=[
            Compare.version("/a", "==", 1),
            Compare.version("/new", "==", 0),
            Compare.create_revision("/a", "==", revision),
            Compare.mod_revision("/a", "<", revision + 1),
            Compare.value("/a", "==", b"1"),
            Compare.value("/a", "!=", b"2"),
            Compare.lease("/a", "==", 0),
        ],
        success=[Op.put("/new", b"n"), Op.get("/a"), Op.delete("/a"), Op.get_prefix("/")],
        failure=[Op.put("/failed", b"")],
    )
    assert result.succeeded
    assert result.revision == revision + 1
    put, got, deleted, listed = result.responses
    assert put == PutResult(revision + 1)
    assert isinstance(got, GetResult)
    assert got.kv is not None
    assert got.kv.value == b"1"
    assert deleted == DeleteResult(1)
    assert isinstance(listed, GetResult)
    assert [kv.key for kv in listed.kvs] == ["/new"]
    assert await client.get("/failed") is None


async def test_a_failed_comparison_applies_the_other_branch(client: Client) -> None:
    revision = await client.put("/a", b"1")
    for comparison in (
        Compare.version("/a", "==", 0),
        Compare.mod_revision("/a", ">", revision),
        Compare.value("/a", "==", b"2"),
        Compare.create_revision("/a", "!=", revision),
        Compare.lease("/a", ">", 0),
        Compare.value("/absent", "!=", b"x"),
    ):
        result = await client.txn([comparison], [Op.put("/a", b"stolen")], [Op.get("/a")])
        assert not result.succeeded
        (got,) = result.responses
        assert isinstance(got, GetResult)
        assert got.kv == KeyValue("/a", b"1", revision, revision, 1, 0)


async def test_a_transaction_may_have_100_operations(client: Client) -> None:
    fits = [Op.put(f"/k/{n}", b"") for n in range(MAX_TXN_OPS)]
    assert len((await client.txn(success=fits)).responses) == 100
    with pytest.raises(InvalidRequest, match=r"failure: 101 operations, at most 100 fit \(split"):
        await client.txn(failure=[*fits, Op.get("/k")])


async def test_requests_that_cannot_succeed_say_why(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"etcd put  at 127.0.0.1:\d+: etcdserver: key is not provided"):
        await client.put("", b"")
    with pytest.raises(InvalidRequest, match="duplicate key"):
        await client.txn(success=[Op.put("/a", b"1"), Op.put("/a", b"2")])
    with pytest.raises(InvalidRequest, match="too large"):
        await client.put("/a", bytes(2_000_000))


async def test_compacted_and_future_revisions_are_told_apart(client: Client) -> None:
    first = await client.put("/a", b"1")
    second = await client.put("/a", b"2")
    await client.compact(second)
    with pytest.raises(Compacted, match="list again"):
        await client.get("/a", revision=first)
    with pytest.raises(Compacted):
        await client.compact(second)
    with pytest.raises(FutureRevision, match="list again"):
        await client.get("/a", revision=second + 1)
    kv = await client.get("/a", revision=second)
    assert kv is not None
    assert kv.value == b"2"


async def test_status_and_members(client: Client) -> None:
    revision = await client.put("/a", b"1")
    status = await client.status()
    assert (status.endpoint, status.version.split(".")[:2]) == (client.endpoints[0], ["3", "6"])
    assert status.is_leader
    assert status.revision == revision
    assert status.db_size_bytes > 0
    (member,) = await client.members()
    assert (member.id, member.name) == (status.member_id, "m0")
    assert member.client_urls == (f"http://{client.endpoints[0]}",)
