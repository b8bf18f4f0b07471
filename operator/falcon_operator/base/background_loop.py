"""Run coroutines on a second event loop, so that callbacks of the main loop do not delay them.

At 200 jobs a callback of the main loop waits for a tenth of a second on average, and for two seconds at worst. A call
over HTTP takes several callbacks, so a renewal of the Lease would miss its time limit several times in a row. A thread
of its own waits for the interpreter alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Aside:
    """A thread with an event loop, from ``__aenter__`` to ``__aexit__``."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_end_all(asyncio.all_tasks(self._loop)))
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread's loop and return its result. When the caller is cancelled, the work is too."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _end_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
