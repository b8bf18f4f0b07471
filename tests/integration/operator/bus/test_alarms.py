"""etcd's alarms on a real etcd with a small quota: what is healed, what is only said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from falcon_etcd import Client, EtcdError, Unavailable
from falcon_etcd._proto import rpc_pb2 as pb
from falcon_etcd._rpc import ALARM
from falcon_operator.bus.alarms import ALARMS_SECONDS, LONGEST_PAUSE_SECONDS, Alarms
from falcon_operator.bus.capacity import is_full
from tests.integration.etcd_server import EtcdServer
from tests.integration.full_etcd import PIECE, fill_with_history, fill_with_live_data
from tests.unit.operator.fake_clock import FakeClock

QUOTA_BYTES = 16 * 1024 * 1024
KEY = "/falcon/v1/000"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[EtcdServer]]:
    """Yield one etcd of one member and one of three; the test starts what it needs."""
    made = []
    for members in (1, 3):
        root = tmp_path / str(members)
        root.mkdir()
        made.append(EtcdServer(root, members=members, arguments=["--quota-backend-bytes", str(QUOTA_BYTES)]))
    yield made
    for server in made:
        server.kill()


@asynccontextmanager
async def running(server: EtcdServer) -> AsyncIterator[Client]:
    server.start()
    async with server.client() as client:
        await client.put("/ready", b"")
    async with server.client(call_timeout_seconds=2.0) as client:  # each look waits so long for a dead member
        yield client


async def test_history_that_fills_the_quota_is_removed_and_writes_work_again(servers: list[EtcdServer]) -> None:
    async with running(servers[0]) as client:
        clock = FakeClock()
        alarms = Alarms(client, clock, retention_seconds=60.0)
        await alarms.check()
        assert alarms.state.notes == ()
        (database,) = alarms.state.databases
        assert database.quota_bytes == QUOTA_BYTES
        await fill_with_history(client, KEY)
        await alarms.check()
        assert alarms.state.full
        assert alarms.state.notes[0].startswith("BusFull: ")
        await client.put(KEY, PIECE)
        clock.advance(ALARMS_SECONDS)
        await alarms.check()
        assert (alarms.state.full, alarms.state.healed, alarms.state.notes) == (False, 1, ())
        assert alarms.state.databases[0].size_bytes < QUOTA_BYTES / 4


async def test_live_data_that_exceed_the_quota_are_said_until_they_are_deleted(servers: list[EtcdServer]) -> None:
    async with running(servers[0]) as client:
        clock = FakeClock()
        alarms = Alarms(client, clock, retention_seconds=None)
        await fill_with_live_data(client, "/falcon/v1/")
        await alarms.check()
        assert alarms.state.full
        assert "quotaBackendBytes" in alarms.state.notes[0]
        assert await client.maintenance.alarms()
        await client.delete_prefix("/falcon/")
        await alarms.check()  # too early for the next attempt
        assert await client.maintenance.alarms()
        clock.advance(LONGEST_PAUSE_SECONDS)
        await alarms.check()
        assert not await client.maintenance.alarms()
        await client.put(KEY, PIECE)


async def test_a_corrupt_etcd_is_said_and_never_disarmed(servers: list[EtcdServer]) -> None:
    async with running(servers[0]) as client:
        clock = FakeClock()
        alarms = Alarms(client, clock, retention_seconds=None)
        await fill_with_history(client, KEY)
        member = (await client.status()).member_id
        raised = pb.AlarmRequest(action=pb.AlarmRequest.ACTIVATE, memberID=member, alarm=pb.CORRUPT)
        await client._call(ALARM, raised, "raise CORRUPT, as etcd's own check does")
        for _ in range(3):
            await alarms.check()
            clock.advance(LONGEST_PAUSE_SECONDS)
        assert alarms.state.corrupt
        assert [note.partition(":")[0] for note in alarms.state.notes] == ["BusFull", "BusCorrupt"]
        assert {alarm.kind for alarm in await client.maintenance.alarms()} == {"NoSpace", "Corrupt"}
        with pytest.raises(EtcdError):
            await client.put(KEY, b"")


async def test_every_member_that_answers_is_defragmented(servers: list[EtcdServer]) -> None:
    server = servers[1]
    async with running(server) as client:
        clock = FakeClock()
        alarms = Alarms(client, clock, retention_seconds=None)
        await fill_with_history(client, KEY)
        server.kill(server.members[2])
        for _ in range(20):  # a follower may compact later, or lead only now
            await _look(alarms)
            clock.advance(LONGEST_PAUSE_SECONDS)
            if alarms.state.healed:
                break
        assert len(alarms.state.databases) == 2
        # Without a defragmentation a member stays as large as it was. A follower may have compacted after its own.
        assert not any(is_full(database.size_bytes, QUOTA_BYTES) for database in alarms.state.databases)
        await client.put(KEY, PIECE)


async def _look(alarms: Alarms) -> None:
    """Look once, as the bus does: what fails is tried again."""
    try:
        await alarms.check()
    except Unavailable:
        return
