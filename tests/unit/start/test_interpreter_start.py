"""What stands on a rank's ``PYTHONPATH``: real interpreters that start with it, answer a signal, and find their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from falcon_core.signals.job.stacks import answering_thread
from falcon_start.stacks import SAMPLE_SIGNAL, SIGNAL

AGENT = Path(__file__).parents[3] / "agent"
WAITING = """
import time

def the_place():
    time.sleep(60)

print("ready", flush=True)
the_place()
"""

# What C registers runs when the interpreter has ended.
AFTER_THE_END = """
import ctypes
library = ctypes.CDLL(None)
library.__cxa_atexit(library.pause, None, None)
print("over", flush=True)
"""


@pytest.fixture
def python_dir(tmp_path: Path) -> Path:
    """Return a folder like ``/falcon/python``, which holds no more than what runs in a user's image."""
    for name in ("falcon_site", "falcon_start"):
        (tmp_path / "python").mkdir(exist_ok=True)
        (tmp_path / "python" / name).symlink_to(AGENT / name)
    return tmp_path / "python"


def environment(python_dir: Path, stacks: Path | None = None, between: Path | None = None) -> dict[str, str]:
    parts = [python_dir / "falcon_site", *([between] if between else []), python_dir]
    asked = {"FALCON_STACKS": str(stacks)} if stacks is not None else {}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(map(str, parts)), **asked}


def run(environ: dict[str, str], code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], env=environ, capture_output=True, text=True)


@contextmanager
def waiting(environ: dict[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *options, "-c", WAITING], env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def listens(process: subprocess.Popen[str]) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)


def test_a_stack_is_written_each_time_and_the_program_goes_on(python_dir: Path, tmp_path: Path) -> None:
    with waiting(environment(python_dir, tmp_path)) as process:
        file = tmp_path / str(process.pid)
        assert file.stat().st_mode & 0o777 == 0o644
        found: list[str] = []
        for _ in range(2):
            os.truncate(file, 0)
            deadline = time.monotonic() + 300
            while not any("the_place (" in frame for frame in found) and time.monotonic() < deadline:
                os.kill(process.pid, SIGNAL)  # the first one may come before the program is there
                time.sleep(0.05)
                found = answering_thread(file.read_text())
            assert found[0].startswith("the_place (")
            found = []
        assert process.poll() is None


def test_nothing_is_done_unless_asked(python_dir: Path, tmp_path: Path) -> None:
    with waiting(environment(python_dir)) as process:
        assert not listens(process)
    assert [path.name for path in tmp_path.iterdir()] == ["python"]
    asked = "import sys; print(sorted(name for name in sys.modules if 'falcon' in name or name == 'faulthandler'))"
    assert run(environment(python_dir), asked).stdout == "[]\n"


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_where_python_ignores_it_nobody_listens(python_dir: Path, tmp_path: Path, option: str) -> None:
    """The launcher looks whether a process listens before it sends the signal, which would end any other."""
    with waiting(environment(python_dir, tmp_path), option) as process:
        assert not listens(process)


def test_a_folder_that_is_not_there_harms_nobody(python_dir: Path, tmp_path: Path) -> None:
    done = run(environment(python_dir, tmp_path / "none"), "print('trained')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_the_images_own_sitecustomize_runs_as_if_this_were_not_there(python_dir: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import os\nFOUND = __name__ + os.environ['PYTHONPATH'][:1]\n")
    code = "import sys, sitecustomize; print(sitecustomize.FOUND, sitecustomize.__file__, sys.path[1])"
    done = run(environment(python_dir, tmp_path, theirs), code)
    assert done.stdout.split() == ["sitecustomize/", str(theirs / "sitecustomize.py"), str(theirs)]
    assert done.stderr == ""


def test_an_error_in_the_images_own_is_theirs(python_dir: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import no_such_module\n")
    environ = environment(python_dir, tmp_path, theirs)
    without = run({**environ, "PYTHONPATH": str(theirs)}, "print('trained')")
    done = run(environ, "print('trained')")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr == without.stderr
    assert "no_such_module" in done.stderr


def test_without_another_it_is_the_sitecustomize(python_dir: Path) -> None:
    folder = str(python_dir / "falcon_site")
    done = run(environment(python_dir), "import sys, sitecustomize; print(sitecustomize.__file__, sys.path)")
    own, path = done.stdout.split(maxsplit=1)
    assert own in (f"{folder}/sitecustomize.py", "/usr/lib/python3.11/sitecustomize.py"), "or Debian's own"
    assert folder not in path


def test_a_program_that_handles_the_signal_itself_keeps_it(python_dir: Path, tmp_path: Path) -> None:
    code = f"import os, signal; signal.signal({SIGNAL}, lambda *_: print('theirs')); os.kill(os.getpid(), {SIGNAL})"
    done = run(environment(python_dir, tmp_path), code)
    assert (done.returncode, done.stdout) == (0, "theirs\n")
    assert signal.SIGRTMIN < SIGNAL < signal.SIGRTMAX


def masks(pid: int) -> dict[str, int]:
    """Return which signals a process catches and ignores: SigCgt and SigIgn, bit masks."""
    fields = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(fields[name], 16) for name in ("SigCgt", "SigIgn")}


def test_a_signal_that_comes_when_the_interpreter_has_ended_ends_no_process(python_dir: Path, tmp_path: Path) -> None:
    """The launcher may have looked just before, when the process still caught it."""
    environ = environment(python_dir, tmp_path)
    command = [sys.executable, "-c", AFTER_THE_END]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"over\n"
            deadline = time.monotonic() + 300
            while masks(process.pid)["SigCgt"] >> (SIGNAL - 1) & 1:
                assert time.monotonic() < deadline, "the interpreter has not ended"
                time.sleep(0.01)
            for number in (SIGNAL, SAMPLE_SIGNAL):
                assert masks(process.pid)["SigIgn"] >> (number - 1) & 1
                process.send_signal(number)
            process.terminate()
            assert process.wait(timeout=600) == -signal.SIGTERM
        finally:
            process.kill()
