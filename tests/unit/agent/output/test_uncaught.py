"""Uncaught exceptions: noted by the process itself, and reported by the agent while the process lives on."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.output import uncaught as noted
from falcon_agent.output.uncaught import Uncaught
from falcon_core.wire.launcher.launch import STACKS_DIR
from falcon_core.wire.launcher.notes import NOTES_SUFFIX
from falcon_core.wire.launcher.printed import RankOutput
from falcon_start import notes

AGENT = Path(__file__).parents[4] / "agent"
RAISES = "def step():\n    raise ValueError('bad shape')\n"


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    folder = tmp_path / STACKS_DIR
    folder.mkdir(parents=True)
    return folder


def run(stacks: Path, code: str, *options: str) -> tuple[int, str]:
    """Run a program as a rank's interpreter does. Return its process id, and what it printed."""
    path = ":".join(str(AGENT / part) for part in ("falcon_site", "."))
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "FALCON_STACKS": str(stacks)}
    command = [sys.executable, *options, "-c", code]
    with subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        printed = process.communicate()[1]
    return process.pid, printed


def end_of(stacks: Path, code: str, *options: str) -> tuple[bool, str]:
    """Run a program. Return whether it noted an exception, and what it printed."""
    pid, printed = run(stacks, code, *options)
    return RunDir(stacks.parents[1]).is_uncaught(pid), printed


def test_the_two_sides_write_and_read_the_same_numbers(stacks: Path) -> None:
    written = notes.Notes(str(stacks))
    pid, run_dir = os.getpid(), RunDir(stacks.parents[1])
    assert (run_dir.collected_ns(pid), run_dir.is_uncaught(pid), run_dir.has_ended(pid)) == (0, False, False)
    written.put(notes.COLLECTED, 0.5)
    written.put(notes.UNCAUGHT, 1.0)
    assert (run_dir.collected_ns(pid), run_dir.is_uncaught(pid), run_dir.has_ended(pid)) == (500_000_000, True, False)
    written.put(notes.ENDED, 1.0)
    assert run_dir.has_ended(pid)


@pytest.mark.parametrize(
    "code",
    [
        RAISES + "step()",
        # as PyTorch does when it has set up its communicators
        RAISES + "import sys\nbefore = sys.excepthook\nsys.excepthook = lambda *told: before(*told)\nstep()",
        RAISES + "import sys\nsys.excepthook = lambda *told: sys.__excepthook__(*told)\nstep()",
        RAISES + "import sys\nsys.excepthook = sys.__excepthook__\nstep()",
        RAISES + "import atexit\natexit.register(step)\nstep()",
    ],
)
def test_an_exception_that_nobody_catches_is_noted_and_printed(stacks: Path, code: str) -> None:
    uncaught, printed = end_of(stacks, code)
    assert uncaught
    assert "ValueError: bad shape" in printed


@pytest.mark.parametrize(
    "code",
    [
        "print('trained')",
        "raise SystemExit(3)",
        RAISES + "import traceback\ntry:\n    step()\nexcept ValueError:\n    traceback.print_exc()",
        RAISES + "import sys\ntry:\n    step()\nexcept ValueError:\n    sys.excepthook(*sys.exc_info())",
        RAISES + "import threading\nthread = threading.Thread(target=step)\nthread.start()\nthread.join()",
        RAISES + "import atexit\natexit.register(step)",
        RAISES + "import os\nif os.fork() == 0:\n    step()\nos.wait()",
        RAISES + "import code\nconsole = code.InteractiveInterpreter()\nconsole.runcode('1 / 0')",
    ],
)
def test_what_ends_no_program_is_not_noted(stacks: Path, code: str) -> None:
    assert not end_of(stacks, code)[0]


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("print('trained')", True),
        ("raise SystemExit(3)", True),
        (RAISES + "step()", True),
        ("import os\nos._exit(0)", False),
        ("import os\nif os.fork() == 0:\n    raise SystemExit(0)\nos.wait()\nos._exit(0)", False),
    ],
    ids=[
        "in its last line",
        "by sys.exit",
        "by an exception",
        "without Python's way out",
        "a child's end is not its own",
    ],
)
def test_a_program_that_is_over_is_noted(stacks: Path, code: str, ended: bool) -> None:
    pid, _ = run(stacks, code)
    assert RunDir(stacks.parents[1]).has_ended(pid) is ended


def test_what_a_program_does_at_its_exit_is_still_the_programs(stacks: Path) -> None:
    look = "open(os.path.join(os.environ['FALCON_STACKS'], '%d.notes' % os.getpid()), 'rb').read()[16:]"
    pid, printed = run(
        stacks, f"import atexit, os, sys\natexit.register(lambda: sys.stderr.write('saw ' + str(any({look}))))"
    )
    assert "saw False" in printed
    assert RunDir(stacks.parents[1]).has_ended(pid)


def test_an_interpreter_that_goes_on_interactively_has_not_ended(stacks: Path) -> None:
    assert not end_of(stacks, RAISES + "step()", "-i")[0]


def test_a_programs_own_comparison_finds_no_foreign_hook(stacks: Path) -> None:
    code = "import sys\nassert sys.excepthook is sys.__excepthook__\nraise ValueError('equal')"
    assert "ValueError: equal" in end_of(stacks, code)[1]


def test_the_note_is_told_once_for_the_newest_traceback(
    stacks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncaught = Uncaught(RunDir(tmp_path))
    printed_ns = time.time_ns()
    processes = {0: [41], 1: [42, 43]}
    assert not uncaught.look(1, {0: printed_ns, 1: printed_ns}, processes)
    (stacks / f"43{NOTES_SUFFIX}").write_bytes(struct.pack("=3d", 0, 1, 0))
    assert uncaught.look(1, {0: printed_ns, 1: printed_ns}, processes)
    assert not uncaught.look(1, {0: printed_ns, 1: printed_ns}, processes), "it is known"
    output = [RankOutput(0), RankOutput(1)]
    assert [each.uncaught_unix_ns for each in uncaught.marked(1, output)] == [0, printed_ns]
    assert [each.uncaught_unix_ns for each in uncaught.marked(2, output)] == [0, 0], (
        "restarted, and without a traceback"
    )
    assert uncaught.look(2, {1: printed_ns}, processes), "another generation"
    monkeypatch.setattr(noted, "LOOK_SECONDS", 0.0)
    assert not uncaught.look(3, {1: printed_ns}, processes), "an old traceback may be of a process that went on"
