"""Write and read the pod's run directory: the agent writes under ``agent/``, and reads under ``launch/``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from falcon_agent.files.untrusted import read_regular
from falcon_agent.files.watched_json import WatchedFile
from falcon_agent.launch.output_file import OutputReader
from falcon_core.wire.launcher.control import SAMPLING_OFFSET, Mode, pack_control, pack_sampling
from falcon_core.wire.launcher.launch import (
    AGENT_DIR,
    ALIVE_FILE,
    CHECK_FILE,
    CHECKPOINT_FILE,
    CONTROL_FILE,
    COPIED_FILE,
    COUNTERS_FILE,
    DIRECTORY_FILE,
    GROUP_FILE,
    IMPORTED_FILE,
    IMPORTS_FILE,
    LINKS_ASKED_FILE,
    LINKS_FILE,
    MICROBATCHES_FILE,
    OUTPUT_FILE,
    PLAN_FILE,
    PROBE_ASKED_FILE,
    PROBE_FILE,
    RINGS_FILE,
    SAMPLE_SUFFIX,
    SAMPLES_ASKED_FILE,
    SMOKE_FILE,
    STACKS_ASKED_FILE,
    STACKS_DIR,
    STATUS_FILE,
    LaunchCounters,
    LaunchPlan,
    LaunchRings,
    LaunchStatus,
    render_plan,
)
from falcon_core.wire.launcher.notes import NOTES_SUFFIX, Notes, unpack
from falcon_core.wire.launcher.output import OutputFormatError
from falcon_core.wire.measurement.check_links import LinksPrinted, PodLinks
from falcon_core.wire.reporting import groups
from falcon_core.wire.reporting.microbatches import MicrobatchOrder
from falcon_core.wire.saves.directory import LaunchDirectory

_T = TypeVar("_T")
MOST_BYTES = 1 << 20  # that are read of a file of the launcher
TAIL_BYTES = 1 << 16  # that are read from the end of a process's output
_MEMORY_FILE = f"{AGENT_DIR}/memory.json"


class RunDir:
    """The files that agent and launcher exchange.

    While nothing changes, a read costs one stat. Every write appears whole, by rename.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[str, WatchedFile[Any]] = {}
        self._plan = ""
        self._wanted_checkpoint = (0, 0, 0)
        self._copied = b""
        self._asked_links: PodLinks | None = None
        self._sampling = (0, 0, 0)
        (path / AGENT_DIR).mkdir(mode=0o755, parents=True, exist_ok=True)

    def status(self) -> LaunchStatus | None:
        """Read the launcher's status; None until it has written any."""
        return self._read(STATUS_FILE, LaunchStatus)

    def counters(self) -> LaunchCounters | None:
        """Read the launcher's counters; None until it has read them once."""
        return self._read(COUNTERS_FILE, LaunchCounters)

    def rings(self) -> list[str] | None:
        """Read which rings are the ranks' own: names of files; None while that cannot be read."""
        known = self._read(RINGS_FILE, LaunchRings)
        return known.own if known is not None else None

    def directory(self) -> LaunchDirectory | None:
        """Read how far the copies of the folder in memory are; None where there is none."""
        return self._read(DIRECTORY_FILE, LaunchDirectory)

    def group(self) -> groups.LaunchGroup | None:
        """Read what the pod's own launcher says of the ranks' group; None where there is no such launcher."""
        return self._read(GROUP_FILE, groups.LaunchGroup, groups.MOST_BYTES)

    def check(self) -> bytes:
        """Read what the newest measurement of the machine printed; empty where nothing can be read."""
        return self._printed(CHECK_FILE)

    def smoke(self) -> bytes:
        """Read what the newest smoke test printed; empty where nothing can be read."""
        return self._printed(SMOKE_FILE)

    def _printed(self, file: str) -> bytes:
        try:
            return read_regular(self.path / file, MOST_BYTES)
        except OSError:
            return b""

    def imports(self) -> bytes:
        """Read what the pod's first rank has imported; empty where nothing can be read."""
        return self._printed(IMPORTED_FILE).rstrip(b"\0")

    def write_imports(self, record: bytes) -> None:
        """Write what standbys in a pod without ranks import."""
        self._write(IMPORTS_FILE, record)

    def links(self) -> LinksPrinted | None:
        """Read how far the executor of the links has come; None where nothing can be read."""
        return self._read(LINKS_FILE, LinksPrinted)

    def ask_for_links(self, links: PodLinks) -> None:
        """Order the executor to measure these links, unless it has this order already."""
        if links != self._asked_links:
            self._write(LINKS_ASKED_FILE, msgspec.json.encode(links))
            self._asked_links = links

    def probe(self) -> LinksPrinted | None:
        """Read how far the executor next to the ranks has come; None where nothing can be read."""
        return self._read(PROBE_FILE, LinksPrinted)

    def ask_for_probe(self, links: PodLinks) -> None:
        """Order the executor next to the ranks to measure these links now."""
        self._write(PROBE_ASKED_FILE, msgspec.json.encode(links))

    def tail(self, local_rank: int, generation: int) -> str:
        """Read the end of a process's output; empty where there is none."""
        try:
            reader = OutputReader(self.path / f"{OUTPUT_FILE}{local_rank}", generation)
        except (OSError, OutputFormatError):
            return ""
        try:
            return reader.tail(TAIL_BYTES).decode(errors="replace")
        except (OSError, OutputFormatError):
            return ""
        finally:
            reader.close()

    def ask_for_stacks(self, unix_ns: int) -> None:
        """Ask the launcher for the Python stacks of the ranks; the time makes the text a new one."""
        self._write(STACKS_ASKED_FILE, f"{unix_ns}\n".encode())

    def stacks(self, pid: int) -> str:
        """Read the stacks of a process; empty where it has written none."""
        return self._of_process(pid)

    def ask_for_samples(self, unix_ns: int, pids: Iterable[int]) -> None:
        """Ask the launcher for the stack of the main thread of these processes."""
        self._write(SAMPLES_ASKED_FILE, f"{unix_ns} {' '.join(map(str, pids))}\n".encode())

    def stack_sample(self, pid: int) -> str:
        """Read the newest sample of a process's stack; empty where it has written none."""
        return self._of_process(pid, SAMPLE_SUFFIX)

    def collected_ns(self, pid: int) -> int | None:
        """Return the time [ns] for which Python's garbage collector has stopped a process; None if it noted none."""
        noted = self._notes(pid)
        return None if noted is None else round(noted.collected_seconds * 1e9)

    def is_uncaught(self, pid: int) -> bool:
        """Check whether a process has noted that its program has ended with an uncaught exception."""
        noted = self._notes(pid)
        return noted is not None and noted.uncaught

    def has_ended(self, pid: int) -> bool:
        """Check whether a process has noted that its program is over."""
        noted = self._notes(pid)
        return noted is not None and noted.ended

    def _notes(self, pid: int) -> Notes | None:
        return unpack(self._printed(f"{STACKS_DIR}/{pid}{NOTES_SUFFIX}"))

    def _of_process(self, pid: int, suffix: str = "") -> str:
        """Read a file that a training process writes; empty where there is none."""
        return self._printed(f"{STACKS_DIR}/{pid}{suffix}").decode(errors="replace")

    def write_wanted_checkpoint(self, generation: int, number: int, saved_before_ms: int = 0) -> None:
        """Write for the ranks' client which checkpoint is wanted, and which ones may be loaded.

        ``number`` grows within a generation; 0: none is wanted. ``saved_before_ms``: unix ms; 0: any may be loaded.
        """
        wanted = (generation, number, saved_before_ms)
        if wanted != self._wanted_checkpoint:
            content = {"generation": generation, "number": number, "saved_before_ms": saved_before_ms}
            self._write(CHECKPOINT_FILE, msgspec.json.encode(content))
            self._wanted_checkpoint = wanted

    def write_copied(self, on: bool, ranks: Mapping[int, tuple[int, int]], sent: int = 0) -> None:
        """Write for the ranks' client whether copies are made, and which checkpoint of each rank has one.

        ``ranks``: by rank the generation that wrote it, and its sequence. ``sent`` grows while a transfer goes on.
        """
        of_ranks = {str(rank): copied for rank, copied in ranks.items()}
        content = msgspec.json.encode({"on": on, "ranks": of_ranks, "sent": sent})
        if content != self._copied:
            self._write(COPIED_FILE, content)
            self._copied = content

    def makes_copies(self) -> bool:
        """Check whether copies were made by the last that was written, which may be an earlier agent's word."""
        try:
            found = msgspec.json.decode(read_regular(self.path / COPIED_FILE, MOST_BYTES))
        except (OSError, msgspec.DecodeError):
            return False
        return isinstance(found, dict) and found.get("on") is True

    def write_microbatches(self, order: MicrobatchOrder) -> None:
        """Write for the client of rank 0 how many micro-batches each rank is to compute."""
        content = {"generation": order.generation, "shares": order.shares}
        self._write(MICROBATCHES_FILE, msgspec.json.encode(content))

    def write_plan(self, plan: LaunchPlan) -> bool:
        """Write the launcher's plan. Return False if the launcher has this plan already."""
        text = render_plan(plan)
        if text == self._plan:
            return False
        self._write(PLAN_FILE, text.encode())
        self._plan = text
        return True

    def touch_alive(self) -> None:
        """Show the launcher that an agent is alive, so that the launcher waits for the agent's plans."""
        path = self.path / ALIVE_FILE
        path.touch()
        os.utime(path)

    def write_control(self) -> None:
        """Write the shim's control file, once. The file never changes its size, since ranks have it mapped."""
        if not (self.path / CONTROL_FILE).exists():
            self._write(CONTROL_FILE, pack_control(Mode.TRACK, epoch=1))

    def sample(self, every: int, cycle_calls: int, verify_every: int = 0) -> None:
        """Ask for device times of one cycle in ``every``, of ``cycle_calls`` calls each.

        ``verify_every``: one in so many all-reduces has its result hashed; 0: none.

        The file is written in place, since ranks have it mapped.
        """
        sampling = (every, cycle_calls, verify_every)
        if sampling == self._sampling:
            return
        with (self.path / CONTROL_FILE).open("r+b") as control:
            control.seek(SAMPLING_OFFSET)
            control.write(pack_sampling(*sampling))
        self._sampling = sampling

    def save_memory(self, raw: bytes) -> None:
        """Write what the next agent needs to know."""
        self._write(_MEMORY_FILE, raw)

    def load_memory(self) -> bytes:
        """Read what the last agent of this pod has saved; empty where there was none."""
        path = self.path / _MEMORY_FILE
        return path.read_bytes() if path.exists() else b""

    def _read(self, name: str, type_: type[_T], most_bytes: int = MOST_BYTES) -> _T | None:
        watched = self._seen.get(name)
        if watched is None:
            watched = self._seen[name] = WatchedFile(self.path / name, type_, most_bytes)
        value = watched.look()
        return value if isinstance(value, type_) else None

    def _write(self, name: str, content: bytes) -> None:
        fresh = self.path / f"{name}.new"
        fresh.write_bytes(content)
        fresh.rename(self.path / name)
