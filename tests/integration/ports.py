"""Ports for servers under test, which no other test takes meanwhile.

They lie below the kernel's ephemeral range: a server that is down for a moment must find its own port free again, and
no client may be given it as a source port. Each worker of pytest-xdist has a slice of its own and gives no port twice
before the slice is used up, so that a port that was chosen and is not yet bound is no other worker's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

_FIRST, _END, _SLICES = 15_000, 32_000, 8


def _slice(worker: str) -> range:
    """Return the ports of the worker ``gw<number>``; a run without workers gets the first worker's ports."""
    size = (_END - _FIRST) // _SLICES
    start = _FIRST + int(worker.removeprefix("gw") or 0) % _SLICES * size
    return range(start, start + size)


_mine = _slice(os.environ.get("PYTEST_XDIST_WORKER", ""))
_next = itertools.cycle(random.sample(_mine, len(_mine)))


def free_port() -> int:
    """Return a port on which nothing listens."""
    while True:
        port = next(_next)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
