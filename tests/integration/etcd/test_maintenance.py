"""Alarms on a real etcd with a small quota: raised, listed, and taken back once there is room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from falcon_etcd import Alarm, Client, Compacted, EtcdError, NoSpace
from falcon_etcd._proto import rpc_pb2 as pb
from falcon_etcd._rpc import ALARM
from tests.integration.etcd_server import EtcdServer
from tests.integration.full_etcd import PIECE, fill_with_history

QUOTA_BYTES = 16 * 1024 * 1024


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = EtcdServer(tmp_path, arguments=["--quota-backend-bytes", str(QUOTA_BYTES)])
    server.start()
    async with server.client() as client:
        yield client
    server.kill()


async def test_a_full_database_takes_writes_again_once_compacted_defragmented_and_disarmed(client: Client) -> None:
    assert await client.maintenance.alarms() == ()
    await fill_with_history(client, "/a")
    full = await client.status()
    assert full.db_quota_bytes == QUOTA_BYTES
    assert full.db_size_bytes > QUOTA_BYTES / 2
    (alarm,) = await client.maintenance.alarms()
    assert alarm == Alarm(full.member_id, "NoSpace")

    await client.compact(full.revision, physical=True, timeout_seconds=30)
    await client.maintenance.defragment(full.endpoint, 30)
    empty = await client.status()
    assert empty.db_in_use_bytes <= empty.db_size_bytes < QUOTA_BYTES / 4
    with pytest.raises(NoSpace):  # room alone is not enough
        await client.put("/a", b"")
    await client.maintenance.disarm(alarm)
    assert await client.maintenance.alarms() == ()
    await client.put("/a", PIECE)
    with pytest.raises(Compacted):
        await client.compact(full.revision)


async def test_a_corrupt_member_is_told_from_a_full_one(client: Client) -> None:
    member = (await client.status()).member_id
    raised = pb.AlarmRequest(action=pb.AlarmRequest.ACTIVATE, memberID=member, alarm=pb.CORRUPT)
    await client._call(ALARM, raised, "raise CORRUPT, as etcd's own check does")
    assert await client.maintenance.alarms() == (Alarm(member, "Corrupt"),)
    with pytest.raises(EtcdError, match="corrupt cluster"):
        await client.put("/a", b"")
