"""The election's own event loop: what runs there goes on while the main loop is busy."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from falcon_operator.base.background_loop import Aside
from falcon_operator.base.clock import SystemClock
from falcon_operator.base.ports import Holder
from falcon_operator.runtime import election
from falcon_operator.runtime.election import Election


class CountedLeases:
    """A Lease in memory that counts its renewals (no API server in this test of a loop)."""

    def __init__(self) -> None:
        self.holder = Holder()
        self.renewals = 0

    async def read(self) -> Holder:
        return self.holder

    async def create(self, holder: Holder) -> Holder:
        self.holder = holder
        return holder

    async def replace(self, holder: Holder) -> Holder:
        self.renewals += 1
        return await self.create(holder)


async def test_the_result_and_the_error_of_the_work_come_back() -> None:
    async def result() -> str:
        return threading.current_thread().name

    async def error() -> None:
        raise OSError("no way")

    async with Aside("aside") as aside:
        assert await aside.run(result()) == "aside"
        with pytest.raises(OSError, match="no way"):
            await aside.run(error())
    assert "aside" not in {thread.name for thread in threading.enumerate()}


async def test_the_work_ends_with_the_caller() -> None:
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async with Aside("aside") as aside:
        caller = asyncio.create_task(aside.run(forever()))
        await asyncio.sleep(0.05)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await asyncio.to_thread(ended.wait, 10)


async def test_a_lease_is_renewed_while_the_main_loop_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "RETRY_SECONDS", 0.02)
    leases = CountedLeases()
    leader = Election(leases, "a", SystemClock())
    async with Aside("aside") as aside:
        await aside.run(leader.acquire())
        renewing = asyncio.create_task(aside.run(leader.keep()))
        await asyncio.sleep(0)
        before = leases.renewals
        time.sleep(1.0)  # noqa: ASYNC251 - the main loop is busy
        assert leases.renewals >= before + 3
        renewing.cancel()
