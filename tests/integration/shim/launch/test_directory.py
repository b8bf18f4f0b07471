"""A folder in memory that is copied behind: real writers, killed at random instants, and real copies."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from falcon_core.wire.launcher.launch import LaunchPlan
from falcon_core.wire.saves.directory import LaunchDirectory
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher
from tests.integration.shim.programs.saving import content

PROGRAM = Path(__file__).parents[1] / "programs" / "saving.py"
HIDDEN = ".falcon-behind"
PATIENCE_SECONDS = 120


class Folders:
    """The script's folder and the durable one."""

    def __init__(self, base: Path) -> None:
        self.memory, self.durable = base / "memory", base / "volume" / "run"
        self.memory.mkdir(parents=True)
        self.durable.parent.mkdir()

    def options(self, memory_bytes: int = 1 << 30, owner: str = "uid-1") -> tuple[str, ...]:
        return (
            *("--directory", str(self.memory), "--directory-bytes", str(memory_bytes)),
            *("--directory-folder", str(self.durable), "--directory-owner", owner),
            *("--restart-grace-seconds", str(PATIENCE_SECONDS)),  # a busy disk takes long to sync
        )


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def names(folder: Path) -> list[str]:
    found = folder.iterdir() if folder.exists() else []
    return sorted(path.name for path in found if path.name != HIDDEN)


def said(launcher: Launcher) -> LaunchDirectory | None:
    path = launcher.run_dir / "launch" / "directory.json"
    return msgspec.json.decode(path.read_bytes(), type=LaunchDirectory) if path.exists() else None


def stop(launcher: Launcher, generation: int) -> None:
    launcher.plan(LaunchPlan(generation=generation, phase="Stop"))
    launcher.wait(PATIENCE_SECONDS, state="Stopped", dead_below=generation)


def latest(folder: Path) -> int:
    path = folder / "latest"
    return int(path.read_text()) if path.exists() else 0


def torn(durable: Path, *, plain: bool) -> str:
    """Return what is wrong with the durable folder; "" for nothing. It may go on meanwhile."""
    for path in durable.glob("step-*"):
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            continue
        if raw != content(int(path.name.removeprefix("step-")), plain=plain):
            return f"{path.name} is torn: {len(raw)} bytes"
    named = latest(durable)
    if named and not (durable / f"step-{named}").exists() and latest(durable) == named:
        return f"latest names step {named}, which is not there"
    return ""


@contextmanager
def watched(durable: Path, *, plain: bool) -> Iterator[list[str]]:
    """Look at the durable folder again and again; the list gets what is wrong with it."""
    found: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            wrong = torn(durable, plain=plain)
            if wrong:
                found.append(wrong)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("plain", [False, True])
def test_a_writer_that_is_killed_at_any_instant_leaves_the_durable_folder_whole(
    start: Start, folders: Folders, *, plain: bool
) -> None:
    launcher = start(
        sys.executable, str(PROGRAM), str(folders.memory), *(["--plain"] * plain), options=folders.options()
    )
    chance = random.Random(5)
    with watched(folders.durable, plain=plain) as wrong:
        for generation in range(1, 4):
            launcher.run(generation=generation)
            rank = launcher.wait(PATIENCE_SECONDS, state="Running", generation=generation).ranks[0]
            before = latest(folders.durable)
            until(lambda before=before: latest(folders.durable) > before, "it goes on")  # type: ignore[misc]
            time.sleep(chance.uniform(0, 1.5))
            os.kill(rank.pid, signal.SIGKILL)
            stop(launcher, generation + 1)
            assert torn(folders.durable, plain=plain) == ""
    assert wrong == []
    launcher.process.kill()
    out, _ = launcher.process.communicate(timeout=60)
    resumed = [int(line.split()[2]) for line in out.decode().splitlines() if line.startswith("resumed from")]
    assert len(resumed) == 3
    assert resumed == sorted(set(resumed)), "each life goes on; the script itself compares what it resumes from"


def test_a_new_pod_finds_what_the_old_one_saved(start: Start, folders: Folders, tmp_path: Path) -> None:
    command = (sys.executable, str(PROGRAM), str(folders.memory), "--steps", "6")
    first = start(*command, options=folders.options())
    first.run()
    first.wait(PATIENCE_SECONDS, state="Exited")  # its pauses are drawn by chance: 24 s of them at most
    until(lambda: (told := said(first)) is not None and told.state == "Ended", "all is durable")
    assert names(folders.durable) == ["latest", "step-5", "step-6"] == names(folders.memory)
    (folders.durable / "sub").mkdir()
    (folders.durable / "sub" / "more").write_text("of another pod")
    (folders.durable / "link").symlink_to("sub/more")
    other = Folders(tmp_path / "other")
    second = start("ls", str(other.memory), options=_with_memory(folders, other))
    second.run(generation=2)
    second.wait(PATIENCE_SECONDS, state="Exited", generation=2)
    assert names(other.memory) == ["latest", "link", "step-5", "step-6", "sub"]
    assert (other.memory / "link").read_text() == "of another pod"
    assert (other.memory / "step-6").read_bytes() == content(6, plain=False)
    assert (other.memory / "step-6").stat().st_mtime_ns == (folders.memory / "step-6").stat().st_mtime_ns
    # The first pod has lost the folder to a newer generation: what it still has is not put there.
    (folders.memory / "late").write_text("of before")
    until(lambda: (told := said(first)) is not None and told.error, "it says so")
    assert "newer generation" in said(first).error  # type: ignore[union-attr]
    assert "late" not in names(folders.durable)


def _with_memory(folders: Folders, other: Folders) -> tuple[str, ...]:
    given = list(folders.options())
    given[1] = str(other.memory)
    return tuple(given)


def test_what_a_killed_process_was_writing_is_undone_before_the_next_start(
    start: Start, folders: Folders, tmp_path: Path
) -> None:
    durable = tmp_path / "durable-now"
    halves = f"until [ -e {durable} ]; do sleep 0.05; done; printf half >> named; exec sleep 100 >> named"
    script = f"cd {folders.memory}; echo one > named; echo one > kept; {halves}"
    launcher = start("sh", "-c", script, options=folders.options())
    launcher.run()
    rank = launcher.wait(state="Running").ranks[0]
    until(lambda: names(folders.durable) == ["kept", "named"], "both are durable")
    durable.touch()
    until(lambda: (folders.memory / "named").read_text() == "one\nhalf", "it writes in place")
    os.kill(rank.pid, signal.SIGKILL)
    stop(launcher, 2)
    assert (folders.durable / "named").read_text() == "one\n"
    launcher.run(generation=2)
    launcher.wait(state="Running", generation=2)
    assert (folders.memory / "kept").read_text() == "one\n"


def test_a_pod_that_is_told_to_end_copies_first(start: Start, folders: Folders) -> None:
    program = (
        "import signal, sys, time, pathlib\n"
        "def end(*_):\n"
        f"    pathlib.Path({str(folders.memory)!r}, 'last').write_text('saved')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(100)\n"
    )
    launcher = start(sys.executable, "-c", program, options=folders.options())
    launcher.run()
    assert launcher.process.stdout is not None
    assert launcher.process.stdout.readline() == b"ready\n"
    launcher.process.terminate()
    launcher.process.communicate(timeout=PATIENCE_SECONDS)
    assert (folders.durable / "last").read_text() == "saved"


def test_older_files_become_links_where_memory_is_small(start: Start, folders: Folders) -> None:
    size = 100_000
    program = (
        "import pathlib, time\n"
        f"folder = pathlib.Path({str(folders.memory)!r})\n"
        "for number in range(1, 7):\n"
        f"    (folder / f'f{{number}}').write_bytes(bytes({size}))\n"
        "    time.sleep(0.2)\n"
        "(folder / 'f1').unlink()\n"
        "time.sleep(100)\n"
    )
    launcher = start(sys.executable, "-c", program, options=folders.options(memory_bytes=6 * size))
    launcher.run()
    until(lambda: names(folders.durable) == [f"f{i}" for i in range(2, 7)], "what is removed is removed")
    until(lambda: sum((folders.memory / f"f{i}").is_symlink() for i in range(2, 7)) == 2, "half of the memory is free")
    assert [f"f{i}" for i in range(2, 7)] == names(folders.memory)
    assert [(folders.memory / f"f{i}").is_symlink() for i in range(2, 7)] == [True, True, False, False, False]
    assert all((folders.memory / f"f{i}").stat().st_size == size for i in range(2, 7))
    stop(launcher, 2)
    launcher.run(generation=2)
    launcher.wait(state="Running", generation=2)


def test_a_slow_copy_does_not_hold_up_the_end(start: Start, folders: Folders) -> None:
    size = 3 << 20
    saves = f"pathlib.Path({str(folders.memory)!r}, 'big').write_bytes(bytes({size}))"
    program = f"import pathlib, time; {saves}; time.sleep(100)"
    options = (*folders.options(), "--directory-bytes-per-second", "1")
    launcher = start(sys.executable, "-c", program, options=options)
    launcher.run()
    until(lambda: (told := said(launcher)) is not None and told.bytes == 2 << 20, "a piece is copied")
    assert names(folders.durable) == []
    stop(launcher, 2)
    assert (folders.durable / "big").stat().st_size == size


def test_a_folder_that_cannot_be_written_is_named_and_no_rank_starts(start: Start, folders: Folders) -> None:
    folders.durable.parent.rmdir()
    folders.durable.parent.write_text("a file")
    launcher = start("true", options=folders.options())
    launcher.run()
    ended = launcher.wait(state="Exited")
    assert ended.ranks == []
    assert ended.error is not None
    assert "could not be filled" in ended.error
    assert "Not a directory" in ended.error


def test_copies_go_on_when_their_process_is_killed(start: Start, folders: Folders) -> None:
    launcher = start("sh", "-c", f"echo 1 > {folders.memory}/a; exec sleep 1000", options=folders.options())
    launcher.run()
    until(lambda: names(folders.durable) == ["a"], "it is copied")
    children = Path(f"/proc/{launcher.process.pid}/task/{launcher.process.pid}/children").read_text().split()
    (copier,) = [pid for pid in children if b"behind" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(int(copier), signal.SIGKILL)
    (folders.memory / "b").write_text("2")
    until(lambda: names(folders.durable) == ["a", "b"], "another process goes on")
    assert launcher.wait(state="Running").ranks[0].state == "Running"
