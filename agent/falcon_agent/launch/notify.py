"""Wait until the launcher has written a file: by the kernel's notice, or by a look ten times a second.

The launcher's files appear whole, by rename. Training processes may write in the same folder, so that the kernel's word
is a reason to look and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from inotify_simple import INotify, flags

POLL_SECONDS = 0.1  # between two looks where the kernel does not watch: it allows a user 128 watchers, or fewer
LEAST_SECONDS = 0.02  # between two looks, however often something is written
_EVENTS_BYTES = 65536


class News:
    """The changes of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notify: INotify | None = None
        self._waiting: asyncio.Event | None = None

    def __enter__(self) -> News:
        return self

    def __exit__(self, *_: object) -> None:
        if self._notify is not None:
            self._notify.close()
            self._notify = None

    async def wait(self, seconds: float) -> None:
        """Return when something was written since the last wait, at the latest after ``seconds``."""
        notify = self._notify or self._watch()
        if notify is None:
            await asyncio.sleep(min(seconds, POLL_SECONDS))
            return
        # The launcher writes several files in a row; one look after a moment sees them all.
        await asyncio.sleep(LEAST_SECONDS)
        loop = asyncio.get_running_loop()
        written = self._waiting = asyncio.Event()
        loop.add_reader(notify.fileno(), written.set)
        try:
            async with asyncio.timeout(max(0.0, seconds - LEAST_SECONDS)):
                await written.wait()
            with contextlib.suppress(BlockingIOError):
                # Only that something was written counts, so the kernel's records are read and dropped.
                os.read(notify.fileno(), _EVENTS_BYTES)
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(notify.fileno())

    def wake(self) -> None:
        """Wake the task that waits."""
        if self._waiting is not None:
            self._waiting.set()

    def _watch(self) -> INotify | None:
        """Ask the kernel to watch the folder; return None if it does not."""
        try:
            notify = INotify(nonblocking=True)
        except OSError:
            return None
        try:
            notify.add_watch(self._folder, flags.MOVED_TO | flags.ONLYDIR | flags.DONT_FOLLOW)
        except OSError:  # not there yet
            notify.close()
            return None
        self._notify = notify
        return notify
