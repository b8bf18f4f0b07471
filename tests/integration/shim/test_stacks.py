"""Stacks that the launcher asks for: written to a file of Falcon's, and never to one of the program's."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.shim.conftest import Start

AGENT = Path(__file__).parents[3] / "agent"
# Rank 1 closes all descriptors, as a daemon does: its next files get their numbers. Both say that they are there.
PROGRAM = """
import os, time
folder, rank = {folder!r}, os.environ["LOCAL_RANK"]
if rank == "1":
    os.closerange(3, 100)
    files = [open(folder + "/own-%d" % number, "ab") for number in range(6)]
open(folder + "/ready-" + rank, "w").close()
while True:
    time.sleep(0.01)
"""
TURNS = 3


@pytest.fixture
def python_dir(tmp_path: Path) -> Path:
    """Return a folder like ``/falcon/python``."""
    folder = tmp_path / "python"
    folder.mkdir()
    for name in ("falcon_site", "falcon_start"):
        (folder / name).symlink_to(AGENT / name)
    return folder


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_files_of_a_program_that_closed_all_descriptors_stay_its_own(
    start: Start, python_dir: Path, tmp_path: Path
) -> None:
    code = PROGRAM.format(folder=str(tmp_path))
    launcher = start(sys.executable, "-c", code, options=("--python", str(python_dir)))
    launcher.run(procs=2)
    until(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in (0, 1)))
    pids = [rank.pid for rank in launcher.wait(state="Running").ranks]
    agent, stacks = launcher.run_dir / "agent", launcher.run_dir / "launch" / "stacks"
    # Both are asked of both ranks, and one after the other: while Python writes one stack it takes no further request.
    for turn in range(TURNS):  # when rank 0 answers, rank 1 has had the turns before
        for file, wanted, suffix in (("stacks", f"{turn}", ""), ("samples", f"{turn} {pids[0]} {pids[1]}", ".sample")):
            (agent / file).write_text(f"{wanted}\n")
            answer = stacks / f"{pids[0]}{suffix}"
            until(lambda answer=answer: "<module>" in answer.read_text())  # type: ignore[misc]
            answer.write_text("")
    assert [(tmp_path / f"own-{number}").read_bytes() for number in range(6)] == [b""] * 6
    assert [rank.state for rank in launcher.wait(state="Running").ranks] == ["Running", "Running"]
