"""What holds for every test of the etcd client."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
async def nothing_is_left_behind() -> AsyncIterator[None]:
    """Check that no task is destroyed while pending, no exception overlooked: asyncio reports both to its handler."""
    reports: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: None if _of_an_earlier_loop(context) else reports.append(str(context))
    )
    yield
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert reports == []


def _of_an_earlier_loop(context: dict[str, Any]) -> bool:
    """Return whether gRPC hands this loop the end of a call that an earlier test cancelled: each test has a loop.

    gRPC has one queue of completed calls a process, which the loop that runs empties; it wakes the loop of the call's
    own. Where that loop is closed, the error shows here.
    """
    return "PollerCompletionQueue" in context.get("message", "") and "loop is closed" in str(context.get("exception"))
