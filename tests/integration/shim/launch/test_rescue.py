"""What the launcher does with checkpoints in memory when the pod ends: real buffers, real folders, no PyTorch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from falcon_core.wire.launcher.launch import LaunchPlan
from falcon_core.wire.saves.checkpoint import unpack_held, unpack_parts
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher
from tests.unit.client_format import client
from tests.unit.torch.test_format import image

CHUNK = 1 << 20
LARGE = 1 << 29  # its checksums take long enough to be interrupted
NAME = "step-000000000040.rank-3-of-4.falcon"
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
OBSTINATE = (sys.executable, "-c", "import signal, time; signal.signal(15, lambda *_: None); time.sleep(600)")
WAIT_SECONDS = 150


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "memory"
    store.mkdir()
    (store / "rank-0.lock").touch()
    return store


def checkpoint(folder: Path | str, *, verified: bool = True, in_folder: int = 0, end: int = 0, **changes: int) -> bytes:
    """Return a buffer with a whole checkpoint of which the script wants copies in a folder."""
    raw, commit = image(data=bytes(range(256)) * 9000, chunk_bytes=CHUNK, **changes)
    if end:
        raw[: client.RECORD_BYTES] = client.pack_commit(commit._replace(end=end))
    if not verified:
        raw[client.VERIFIED_OFFSET : client.VERIFIED_OFFSET + 64] = bytes(64)
        raw[client.CHECKS_OFFSET : client.CHECKS_OFFSET + 12] = bytes(12)
    for offset, record in (
        (client.FOLDER_OFFSET, client.pack_folder(str(folder), 3, 4)),
        (client.NOTES_OFFSET, client.pack_notes(listens=False, in_folder=in_folder)),
    ):
        raw[offset : offset + len(record)] = record
    return bytes(raw) + bytes(8192)  # a buffer is larger than what it holds


def ended(start: Start, store: Path, *options: str, command: tuple[str, ...] = SLEEPS) -> tuple[int, str]:
    """Run a pod, end it, and return its exit code and what the launcher said."""
    launcher = start(*command, options=options, environment={"FALCON_CHECKPOINT_DIR": str(store)})
    launcher.run()
    launcher.wait(state="Running")
    launcher.process.send_signal(signal.SIGTERM)
    _, said = launcher.process.communicate(timeout=WAIT_SECONDS)
    return launcher.process.returncode, said.decode()


def is_whole(raw: bytes) -> bool:
    commit = client.unpack_commit(raw[: client.PAGE_BYTES], len(raw))
    assert commit is not None
    client.check_index(memoryview(raw), commit, "here")
    client.check_chunks(memoryview(raw), commit, "here")
    return client.is_verified(raw[: client.PAGE_BYTES], commit)


def test_what_has_no_copy_when_the_pod_ends_is_brought_to_the_scripts_folder(
    start: Start, store: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "volume"
    folder.mkdir()
    buffer = checkpoint(folder)
    (store / "rank-0.0").write_bytes(buffer)
    (store / "rank-0.1").write_bytes(checkpoint(folder, step=20, sequence=8, in_folder=8))
    code, said = ended(start, store)
    assert [path.name for path in folder.iterdir()] == [NAME], "the older one had its copy"
    raw = (folder / NAME).read_bytes()
    assert raw == buffer[: len(raw)]
    assert is_whole(raw)
    assert f"rank 3's checkpoint of step 40 is brought from memory to {folder}/{NAME}: the pod ends" in said
    assert code == 128 + signal.SIGTERM


def test_both_of_a_rank_are_brought_since_ranks_may_be_one_save_apart(
    start: Start, store: Path, tmp_path: Path
) -> None:
    (store / "rank-0.0").write_bytes(checkpoint(tmp_path))
    (store / "rank-0.1").write_bytes(checkpoint(tmp_path, step=20, sequence=8))
    ended(start, store)
    assert sorted(path.name for path in tmp_path.glob("*.falcon")) == [NAME.replace("40", "20"), NAME]


def test_a_process_that_died_before_its_checksums_leaves_them_to_the_launcher(
    start: Start, store: Path, tmp_path: Path
) -> None:
    (store / "rank-0.0").write_bytes(checkpoint(tmp_path, verified=False))
    ended(start, store)
    assert is_whole((tmp_path / NAME).read_bytes())
    in_memory = (store / "rank-0.0").read_bytes()
    assert unpack_parts(in_memory[: client.PAGE_BYTES], len(in_memory)) is not None, "it can be copied to another pod"


def test_so_it_does_where_there_is_no_folder(start: Start, store: Path) -> None:
    (store / "rank-0.0").write_bytes(checkpoint("", verified=False))
    _, said = ended(start, store)
    in_memory = (store / "rank-0.0").read_bytes()
    assert unpack_parts(in_memory[: client.PAGE_BYTES], len(in_memory)) is not None
    assert "checkpoint" not in said


def test_a_job_that_ends_by_its_plan_brings_its_checkpoints_as_well(start: Start, store: Path, tmp_path: Path) -> None:
    (store / "rank-0.0").write_bytes(checkpoint(tmp_path))
    launcher = start(*SLEEPS, environment={"FALCON_CHECKPOINT_DIR": str(store)})
    launcher.run()
    launcher.wait(state="Running")
    launcher.finish(exit_code=3)
    assert is_whole((tmp_path / NAME).read_bytes())
    assert launcher.process.returncode == 3


def test_a_restart_in_place_writes_nothing(start: Start, store: Path, tmp_path: Path) -> None:
    (store / "rank-0.0").write_bytes(checkpoint(tmp_path))
    launcher = start(*SLEEPS, environment={"FALCON_CHECKPOINT_DIR": str(store)})
    launcher.run()
    launcher.wait(state="Running")
    launcher.plan(LaunchPlan(generation=2, phase="Stop"))
    launcher.wait(state="Stopped", dead_below=2)
    assert list(tmp_path.glob("*.falcon")) == [], "memory stays where it is, and nothing waits for the volume"


def test_ranks_that_do_not_end_lose_nothing_by_it(start: Start, store: Path, tmp_path: Path) -> None:
    (store / "rank-0.0").write_bytes(checkpoint(tmp_path))
    ended(start, store, "--restart-grace-seconds", "4", "--grace-seconds", "3", command=OBSTINATE)
    assert is_whole((tmp_path / NAME).read_bytes())


@pytest.mark.parametrize("damage", ["cut", "flipped", "a link", "no folder"])
def test_the_pod_ends_whatever_lies_there(start: Start, store: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "gone" if damage == "no folder" else tmp_path
    raw = bytearray(checkpoint(folder))
    if damage == "cut":
        raw = raw[:1000]
    if damage == "flipped":
        raw[33] ^= 1
    (store / "rank-0.0").write_bytes(raw)
    if damage == "a link":
        (store / "rank-0.0").rename(tmp_path / "elsewhere")
        (store / "rank-0.0").symlink_to(tmp_path / "elsewhere")
    code, said = ended(start, store)
    assert code == 128 + signal.SIGTERM
    assert list(tmp_path.glob("*.falcon")) == []
    lost = f"rank 3's checkpoint of step 40 stays in memory, and is lost with it: {folder}/{NAME}: No such file"
    assert (lost in said) == (damage == "no folder")


def rescuing(launcher: Launcher) -> int:
    """Return the process that rescues checkpoints, stopped, as one is that waits for a volume."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        children = Path(f"/proc/{launcher.process.pid}/task/{launcher.process.pid}/children").read_text().split()
        for pid in map(int, children):
            with contextlib.suppress(OSError):  # a rank that has just ended
                if b"\0rescue\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGSTOP)
                    return pid
        time.sleep(0.002)
    pytest.fail("no process rescues checkpoints")


def test_a_volume_that_hangs_holds_the_pods_end_up_no_longer_than_its_grace(
    start: Start, store: Path, tmp_path: Path
) -> None:
    buffer = store / "rank-0.0"
    buffer.write_bytes(checkpoint(tmp_path, verified=False, end=LARGE))
    os.truncate(buffer, LARGE)
    options = ("--restart-grace-seconds", "3")
    launcher = start(*SLEEPS, options=options, environment={"FALCON_CHECKPOINT_DIR": str(store)})
    launcher.run()
    launcher.wait(state="Running")
    launcher.process.send_signal(signal.SIGTERM)
    rescuing(launcher)
    _, said = launcher.process.communicate(timeout=WAIT_SECONDS)
    assert launcher.process.returncode == 128 + signal.SIGTERM
    assert "the pod's time is over before all checkpoints in memory are in their folder" in said.decode()
    assert list(tmp_path.glob("*.falcon")) == []


def test_its_process_says_by_its_exit_code_whether_all_is_there(store: Path, tmp_path: Path) -> None:
    (store / "rank-0.0").write_bytes(checkpoint(tmp_path / "gone"))
    program = Path(os.environ.get("SHIM_OUT", "")) / "falcon-launch"
    command = [str(program), "rescue", str(store)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    (tmp_path / "gone").mkdir()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert unpack_held((tmp_path / "gone" / NAME).read_bytes()) is not None
