"""What holds for every test of the etcd client."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest


@pytest.fixture(autouse=True)
async def nothing_is_left_behind() -> AsyncIterator[None]:
    """Check that no task is destroyed while pending, no exception overlooked: asyncio reports both to its handler."""
    reports: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(str(context)))
    yield
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert reports == []
