"""How large etcd's database grows within an hour of a job's writes.

The keys and values that the gateway really writes are recorded for a while, and then written over and over into an etcd
of its own, as fast as it takes them, until an hour's worth is written. After each minute's worth the history is
compacted up to the minute before, as etcd's periodic compaction does at a retention of one minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from falcon_etcd import Relisted
from tests.integration.etcd_server import EtcdServer

SECONDS: Final = 3600.0
MINUTE: Final = 60.0


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """What was written within a while: keys, values, and when (seconds from the beginning)."""

    seconds: float
    puts: list[tuple[float, str, bytes]]


class Hour(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour's worth of writes leaves."""

    puts: int
    written_mib: float
    database_mib: float  # the file's size at its largest


async def record(etcd: EtcdServer, seconds: float) -> Writes:
    """Record what is written for so many seconds."""
    puts: list[tuple[float, str, bytes]] = []
    began = time.monotonic()
    async with etcd.client() as client:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for event in client.watch_prefix("/falcon/"):
                    if not isinstance(event, Relisted) and event.type == "put":
                        puts.append((time.monotonic() - began, event.kv.key, event.kv.value))
    return Writes(seconds=seconds, puts=puts)


async def measure(writes: Writes) -> Hour:
    """Write an hour's worth."""
    with tempfile.TemporaryDirectory(prefix="falcon-hour-") as folder:
        etcd = EtcdServer(Path(folder))
        etcd.start()
        try:
            return await _play(etcd, writes)
        finally:
            etcd.kill()


async def _play(etcd: EtcdServer, writes: Writes) -> Hour:
    count, size, largest = 0, 0, 0
    minute, old, revision = 0, 0, 0
    async with etcd.client() as client:
        for round_ in itertools.count():
            begin = round_ * writes.seconds
            if begin >= SECONDS:
                break
            for at, key, value in writes.puts:
                revision = await client.put(key, value)
                count, size = count + 1, size + len(key) + len(value)
                if (begin + at) // MINUTE > minute:
                    minute = int((begin + at) // MINUTE)
                    if old:
                        await client.compact(old)
                    old = revision
                    largest = max(largest, (await client.status()).db_size_bytes)
        largest = max(largest, (await client.status()).db_size_bytes)
    return Hour(puts=count, written_mib=size / 2**20, database_mib=largest / 2**20)
