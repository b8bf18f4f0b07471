"""An etcd whose quota is reached, by history or by data that are in use."""

from __future__ import annotations

import itertools

from falcon_etcd import Client, NoSpace, Unavailable
from falcon_operator.bus.capacity import is_full

PIECE = bytes(512 * 1024)
DEFRAGMENT_SECONDS = 60.0


async def fill_with_history(client: Client, key: str) -> None:
    """Overwrite a key until etcd refuses."""
    while True:
        try:
            await client.put(key, PIECE)
        except NoSpace:
            return
        except Unavailable:
            continue  # another member leads now


async def fill_with_live_data(client: Client, prefix: str) -> None:
    """Write large values to new keys until etcd is full even without gaps.

    How much of the file is gaps depends on how many writes share a commit, so on the speed of the machine.
    """
    for number in itertools.count():
        try:
            await client.put(f"{prefix}{number:03}", PIECE)
        except NoSpace:
            full = await client.status()
            await client.maintenance.defragment(full.endpoint, DEFRAGMENT_SECONDS)
            dense = await client.status()
            if is_full(dense.db_size_bytes, dense.db_quota_bytes):
                return
            for alarm in await client.maintenance.alarms():
                await client.maintenance.disarm(alarm)
