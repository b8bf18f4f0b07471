"""Helpers of the watch tests: record what a watch yields, and compare it with what etcd says happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

from falcon_etcd import Client, Relisted, WatchEvent

Change: TypeAlias = tuple[int, str, str, bytes]  # revision, put or delete, key, value


def change(event: WatchEvent) -> Change:
    return event.kv.mod_revision, event.type, event.kv.key, event.kv.value


class Recording:
    """All that a watch yielded so far."""

    def __init__(self) -> None:
        self.items: list[WatchEvent | Relisted] = []
        self._grew = asyncio.Condition()
        self._ended = False

    @property
    def changes(self) -> list[Change]:
        return [change(item) for item in self.items if isinstance(item, WatchEvent)]

    @property
    def listings(self) -> list[Relisted]:
        return [item for item in self.items if isinstance(item, Relisted)]

    async def record(self, client: Client, prefix: str, start_revision: int | None) -> None:
        try:
            async for item in client.watch_prefix(prefix, start_revision):
                async with self._grew:
                    self.items.append(item)
                    self._grew.notify_all()
        finally:
            self._ended = True
            async with self._grew:
                self._grew.notify_all()

    async def until(self, enough: Callable[[Recording], bool], timeout_seconds: float = 60.0) -> None:
        try:
            async with asyncio.timeout(timeout_seconds), self._grew:
                await self._grew.wait_for(lambda: self._ended or enough(self))
            assert enough(self), f"the watch ended after {self.items[-5:]}"
        except TimeoutError:
            raise AssertionError(f"not enough in {timeout_seconds} s: {self.items[-5:]}") from None

    async def until_key(self, key: str) -> None:
        """Wait until the last change is about ``key``, or the last listing has it."""

        def seen(recording: Recording) -> bool:
            last = recording.items[-1] if recording.items else None
            if isinstance(last, WatchEvent):
                return last.kv.key == key
            return last is not None and key in {kv.key for kv in last.kvs}

        await self.until(seen)


@contextlib.asynccontextmanager
async def watching(client: Client, prefix: str, start_revision: int | None = None) -> AsyncIterator[Recording]:
    """Record a watch in the background; an error that ends it ends the test."""
    recording = Recording()
    task = asyncio.create_task(recording.record(client, prefix, start_revision))
    try:
        if start_revision is None:
            await recording.until(lambda r: len(r.listings) == 1)
        yield recording
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def history(client: Client, prefix: str, since_revision: int) -> list[Change]:
    """Return what etcd itself has recorded from ``since_revision`` until now, read by a new watch."""
    marker = f"{prefix}\uffff-end"
    end = await client.put(marker, b"")
    changes: list[Change] = []
    async for event in client.watch_prefix(prefix, since_revision):
        assert isinstance(event, WatchEvent)
        if event.kv.mod_revision == end:
            return changes
        changes.append(change(event))
    raise AssertionError("the watch ended")
