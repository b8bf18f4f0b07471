"""Leases: they keep what is alive, drop what is not, and say when they are lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from falcon_etcd import Client, LeaseNotFound
from tests.integration.etcd.watching import watching
from tests.integration.etcd_server import EtcdServer

TTL_SECONDS = 3  # a machine that stands still for a second loses no lease


async def test_a_lease_keeps_its_keys_until_it_is_closed(client: Client) -> None:
    lease = await client.lease(TTL_SECONDS)
    assert lease.ttl_seconds == TTL_SECONDS
    await client.put("/alive", b"", lease.id)
    await asyncio.sleep(2 * TTL_SECONDS)
    info = await client.time_to_live(lease.id)
    assert info.granted_seconds == TTL_SECONDS
    assert info.keys == ("/alive",)
    assert 0 < lease.remaining_seconds <= TTL_SECONDS
    await lease.close()
    assert await client.get("/alive") is None
    assert not lease.kept
    assert not lease.lost.is_set()
    assert (await client.time_to_live(lease.id)).remaining_seconds == -1


async def test_a_lease_survives_a_restart_of_etcd(etcd: EtcdServer, client: Client) -> None:
    async with await client.lease(TTL_SECONDS) as lease:
        created = await client.put("/alive", b"", lease.id)
        etcd.kill()
        await asyncio.sleep(1.5 * TTL_SECONDS)
        etcd.start()
        await asyncio.sleep(2 * TTL_SECONDS)
        kv = await client.get("/alive")
        assert kv is not None
        assert kv.create_revision == created
        assert not lease.lost.is_set()
        assert lease.remaining_seconds > 0


async def test_a_key_goes_when_its_client_dies(etcd: EtcdServer, client: Client) -> None:
    program = f"""
import asyncio
from falcon_etcd import Client
async def main():
    async with Client({etcd.endpoints}) as client:
        lease = await client.lease({TTL_SECONDS})
        await client.put("/alive/other", b"", lease.id)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    async with watching(client, "/alive/") as recording:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        await recording.until_key("/alive/other")
        await asyncio.sleep(1.5 * TTL_SECONDS)
        assert await client.get("/alive/other") is not None
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await recording.until(lambda r: [c[1] for c in r.changes] == ["put", "delete"])


async def test_a_revoked_lease_is_lost(client: Client) -> None:
    lease = await client.lease(TTL_SECONDS)
    await client.revoke(lease.id)
    await asyncio.wait_for(lease.lost.wait(), 5)
    assert "etcd does not know the lease" in lease.lost_reason
    with pytest.raises(LeaseNotFound, match="grant a new lease and put its keys again"):
        await client.put("/alive", b"", lease.id)
    with pytest.raises(LeaseNotFound):
        await client.revoke(lease.id)
    await lease.close()


async def test_lost_data_means_lost_leases(etcd: EtcdServer, client: Client) -> None:
    """The owner learns that its lease is lost; it grants a new lease and puts its keys again."""
    lease = await client.lease(TTL_SECONDS)
    await client.put("/alive", b"", lease.id)
    etcd.wipe()
    etcd.start()
    await asyncio.wait_for(lease.lost.wait(), 10)
    assert await client.get("/alive") is None
    async with await client.lease(TTL_SECONDS) as again:
        await client.put("/alive", b"", again.id)
        assert (await client.time_to_live(again.id)).keys == ("/alive",)


async def test_a_closed_client_lets_its_leases_expire(etcd: EtcdServer) -> None:
    async with etcd.client() as observer:
        async with etcd.client() as owner:
            lease = await owner.lease(TTL_SECONDS)
            await observer.put("/alive", b"", lease.id)
        async with watching(observer, "/alive") as recording:
            await recording.until(lambda r: [c[1] for c in r.changes] == ["delete"])
    assert not lease.lost.is_set()
