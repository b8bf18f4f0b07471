"""A state that one pod has and another one needs: through the memory of two nodes, and through a volume.

The shard is one of ``SHARD_BYTES``. What is timed: a lost shard's way back from the pod that keeps its copy, beside a
plain copy of the same bytes over the same kind of stream; and the whole way of a state that is saved in one pod and
loaded in another, as when two nodes exchange their roles (FALCON §7.4, figure 19).

A volume's rate is set by the kernel (``blkio.throttle`` of cgroup v1), in both directions, for the processes that save
and load. Its pages are dropped in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.checkpoint.pods import Pod, acquaint, certificate, environment
from falcon_agent.checkpoint import protocol
from falcon_agent.checkpoint.client import fetch, put
from falcon_agent.checkpoint.store import Store
from falcon_core.wire.saves.checkpoint import PAGE_BYTES, Parts, unpack_parts

SHARD_BYTES: Final = 1 << 30
VOLUME_BYTES_A_SECOND: Final = 125_000_000  # of a volume of a cloud that is not paid for more
ROUNDS: Final = 5
MOVER: Final = Path(__file__).with_name("mover.py")
THROTTLE: Final = Path("/sys/fs/cgroup/blkio")
Seconds = dict[str, float]


def measure(python: Path, folder: Path) -> Seconds:
    """Return what each part of the two ways takes, seconds; those of the volume only where its rate can be set."""
    memory = 2 * (SHARD_BYTES + (16 << 20))
    keeper = Pod(folder / "keeper", 1, memory, certificate(folder / "tls"))
    found: Seconds = {}
    try:
        own, fresh = (Store(folder / name, 1, memory) for name in ("own", "fresh"))
        for store, name in ((own, "own"), (fresh, "fresh")):
            (folder / name).mkdir()
            store.make()
        acquaint(None, keeper, 1)
        found.update(_moved(python, "save", folder / "own", folder))
        buffer = own.newest(0)
        assert buffer is not None
        began = time.perf_counter()
        assert asyncio.run(put(keeper.peer(), buffer[0]))
        found["put"] = time.perf_counter() - began
        found.update(asyncio.run(_fetched(keeper, fresh.buffers(0)[0])))
        found.update(_moved(python, "load", folder / "fresh", folder))
    finally:
        keeper.end()
    with tempfile.TemporaryDirectory(prefix="falcon-volume-", dir="/var/tmp") as volume, _throttled(volume) as group:
        if group is not None:
            for what in ("save", "load"):
                found.update(
                    {f"volume_{name}": each for name, each in _moved(python, what, None, Path(volume), group).items()}
                )
    return found


async def _fetched(keeper: Pod, buffer: Path) -> Seconds:
    """Return the medians of fetching the shard from its keeper, and of a plain copy of its bytes, in turns."""
    (copy,) = [path for path in (keeper.folder / "copies").iterdir() if _parts(path) is not None]
    parts = _parts(copy)
    assert parts is not None
    times: dict[str, list[float]] = {"fetch": [], "raw": []}
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await _plain(keeper, copy, parts.begin, parts.end - parts.begin, buffer)
        times["raw"].append(time.perf_counter() - began)
        began = time.perf_counter()
        page = await fetch(keeper.peer(), parts, buffer)
        with buffer.open("r+b") as file:
            protocol.write_page(file.fileno(), page)
        times["fetch"].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in times.items()}


async def _plain(keeper: Pod, copy: Path, at: int, size: int, buffer: Path) -> None:
    """Copy bytes of the keeper's file into a buffer as they are: nothing is compared."""
    context = keeper.peer().context
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", keeper.ports()[1], ssl=context, limit=protocol.PIECE_BYTES
    )
    writer.write(f"{copy} {at} {size}\n".encode())
    file = os.open(buffer, os.O_RDWR)
    while size:
        piece = await reader.readexactly(min(protocol.PIECE_BYTES, size))
        os.pwrite(file, piece, at)
        at, size = at + len(piece), size - len(piece)
    os.close(file)
    writer.close()


def _parts(path: Path) -> Parts | None:
    with path.open("rb") as file:
        return unpack_parts(file.read(PAGE_BYTES), path.stat().st_size)


def _moved(python: Path, what: str, store: Path | None, folder: Path, group: Path | None = None) -> Seconds:
    """Save or load the shard in a process of its own; return what it says. ``store`` None: in the folder alone."""
    environ = environment(folder, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    del environ["FALCON_CONTROL"]
    if store is None:
        del environ["FALCON_CHECKPOINT_DIR"]
    else:
        environ["FALCON_CHECKPOINT_DIR"] = str(store)
    run = subprocess.run(
        [str(python), "-W", "ignore", str(MOVER), what, str(SHARD_BYTES), "" if store else str(folder)]
        + ([str(group / "cgroup.procs")] if group is not None else []),
        env=environ,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: Seconds = json.loads(run.stdout)
    return found


@contextlib.contextmanager
def _throttled(volume: str) -> Iterator[Path | None]:
    """Yield a control group in which the volume has its rate; None where the kernel or the rights do not allow it."""
    about = Path(volume).stat()
    device = f"{os.major(about.st_dev)}:{os.minor(about.st_dev)}"
    group = THROTTLE / f"falcon-benchmark-{os.getpid()}"
    try:
        group.mkdir()
        for way in ("read", "write"):
            (group / f"blkio.throttle.{way}_bps_device").write_text(f"{device} {VOLUME_BYTES_A_SECOND}")
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()
