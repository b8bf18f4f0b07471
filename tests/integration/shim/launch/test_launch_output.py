"""The ranks' output through falcon-launch: every byte, every line whole, and a bounded end kept for the agent."""

from __future__ import annotations

import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from inotify_simple import INotify, flags

from falcon_agent.launch.output_file import OutputReader
from falcon_agent.launch.run_dir import TAIL_BYTES
from falcon_core.wire.launcher.launch import LaunchPlan
from falcon_core.wire.launcher.output import CAPACITY, READABLE, OutputFormatError
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher


def _output(launcher: Launcher, procs: int = 1) -> tuple[bytes, bytes]:
    """Run one generation to its end; return its standard output and error, read as they come."""
    read: list[tuple[bytes, bytes]] = []
    reader = threading.Thread(target=lambda: read.append(launcher.process.communicate(timeout=60)))
    reader.start()
    launcher.run(procs=procs)
    launcher.wait(state="Exited", timeout_seconds=120)
    launcher.plan(LaunchPlan(generation=1, phase="Finish"))
    reader.join()
    return read[0]


def test_any_bytes_pass_on_both_streams(start: Start) -> None:
    program = """
import random, sys
for stream, seed in ((sys.stdout.buffer, 1), (sys.stderr.buffer, 2)):
    made = random.Random(seed)
    for _ in range(200):
        stream.write(made.randbytes(made.randrange(1, 20000)))
        stream.flush()
"""
    expected = []
    for seed in (1, 2):
        made = random.Random(seed)
        expected.append(b"".join(made.randbytes(made.randrange(1, 20000)) for _ in range(200)))
    launcher = start(sys.executable, "-c", program)
    assert _output(launcher) == tuple(expected)


def test_long_lines_of_several_ranks_stay_whole_and_each_rank_has_a_file_of_its_own(start: Start) -> None:
    length, lines, procs = 300_000, 10, 3
    program = f"""
import os
rank = int(os.environ["RANK"])
for _ in range({lines}):
    left = (bytes([97 + rank]) * {length} + b"\\n")
    while left:
        left = left[os.write(1, left[:50_000]):]
"""
    launcher = start(sys.executable, "-c", program)
    out, err = _output(launcher, procs)
    assert err == b""
    whole = [bytes([97 + rank]) * length for rank in range(procs)]
    found = out.split(b"\n")
    assert sorted(line for line in found if len(line) == length) == sorted(whole * lines)
    assert len(out) == procs * lines * (length + 1), "nothing lost, nothing added"
    for rank in range(procs):
        tail = launcher.tail(rank)
        assert len(tail) == TAIL_BYTES
        assert set(tail) <= set(bytes([97 + rank]) + b"\n")


def test_a_prompt_and_a_progress_bar_of_several_ranks_show_while_they_run(start: Start) -> None:
    command = "printf 'ask? '; printf '\\r%s %%' 10 20 30; exec sleep 1000"
    launcher = start("sh", "-c", command)
    launcher.run(procs=2)
    out = launcher.process.stdout
    assert out is not None
    seen = b""
    deadline = time.monotonic() + 20
    while seen.count(b"30 %") < 2:
        assert time.monotonic() < deadline, seen
        seen += out.read1(4096)  # type: ignore[attr-defined]  # a BufferedReader
    assert seen.count(b"ask? \r10 %\r20 %\r") == 2


def test_last_words_without_a_newline_pass(start: Start) -> None:
    assert _output(start("printf", "last words"), procs=2) == (b"last words" * 2, b"")


def test_a_reader_of_ours_that_went_away_harms_no_rank(start: Start) -> None:
    launcher = start("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done; exit 4")
    assert launcher.process.stdout is not None
    launcher.process.stdout.close()
    launcher.run()
    ended = launcher.wait(state="Exited").ranks[0]
    assert (ended.exit_code, ended.signal) == (4, None)
    launcher.process.stdout = None  # communicate() would read it


def _kept(launcher: Launcher) -> OutputReader:
    return OutputReader(launcher.run_dir / "launch" / "output.0", 1)


def test_the_newest_output_is_kept_whole_across_the_end_of_the_file(start: Start) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(300_000))
    launcher = start(sys.executable, "-c", "for n in range(300_000): print('line', n)")
    out, _ = _output(launcher)
    assert out == lines
    assert len(lines) > 2 * CAPACITY
    assert _kept(launcher).tail(READABLE) == lines[-READABLE:]


def test_each_generation_has_a_file_of_its_own(start: Start) -> None:
    launcher = start("sh", "-c", "echo $TORCHELASTIC_RESTART_COUNT; exec sleep 1000")
    for generation in (1, 2):
        launcher.run(generation=generation)
        launcher.wait(state="Running", generation=generation)
        _until(lambda number=generation: launcher.tail(0, number) == b"%d\n" % (number - 1))  # type: ignore[misc]
    with pytest.raises(OutputFormatError, match="of generation 2"):
        _kept(launcher)


def test_news_come_at_once_and_then_five_times_a_second_and_never_of_nothing(start: Start, tmp_path: Path) -> None:
    """Held against the time that passes: five a second, and five more at once after a quiet time.

    When the program has printed its last line, one announcement is due at most.
    """
    program = "echo first; until [ -e $0 ]; do sleep 0.01; done; for i in $(seq 150); do echo $i; sleep 0.01; done"
    launcher = start("sh", "-c", program + "; exec sleep 1000", str(tmp_path / "go"))
    launch = launcher.run_dir / "launch"
    launcher.wait(state="Idle")
    with INotify() as notify:
        notify.add_watch(launch, flags.MOVED_TO)
        began = time.monotonic()
        launcher.run()
        announced = 0

        def news() -> int:
            nonlocal announced
            announced += sum(event.name.startswith("printed.") for event in notify.read(timeout=0))
            return announced

        _until(news)
        (tmp_path / "go").touch()
        _until(lambda: launcher.tail(0).endswith(b"\n150\n"))
        printed = news()
        assert printed <= 5 + (time.monotonic() - began) * 5
        _until(lambda: news() >= 2)
        time.sleep(1.5)
        assert news() <= printed + 1
    assert len(list(launch.glob("printed.*"))) == 1


@pytest.mark.parametrize("hostile", ["a folder", "a FIFO beside it", "a link", "no space", "cut short"])
def test_training_goes_on_whatever_the_file_is(start: Start, tmp_path: Path, hostile: str) -> None:
    launcher = start("sh", "-c", "echo first; sleep 0.3; seq 300000; echo last")
    launch = launcher.run_dir / "launch"
    launcher.wait(state="Idle")
    untouched = tmp_path / "untouched"
    untouched.write_text("mine")
    match hostile:
        case "a folder":
            (launch / "output.0").mkdir()
            (launch / "printed.1").mkdir()
        case "a FIFO beside it":
            os.mkfifo(launch / "output.0.new")
        case "a link":
            (launch / "output.0").symlink_to(untouched)
            (launch / "output.0.new").symlink_to(untouched)
            (launch / "printed.0").symlink_to(untouched)
        case "no space":
            resource.prlimit(launcher.process.pid, resource.RLIMIT_FSIZE, (CAPACITY // 2, CAPACITY // 2))
    launcher.run()
    if hostile == "cut short":
        _until((launch / "output.0").exists)
        os.truncate(launch / "output.0", 0)
    expected = b"first\n" + b"".join(b"%d\n" % number for number in range(1, 300_001)) + b"last\n"
    assert launcher.process.stdout is not None
    read = b""
    while len(read) < len(expected):
        read += launcher.process.stdout.read1(1 << 20)  # type: ignore[attr-defined]  # a BufferedReader
    assert read == expected
    assert launcher.wait(state="Exited").ranks[0].exit_code == 0
    _, err = launcher.finish()
    refused = err.count("cannot make")
    assert refused == (1 if hostile in ("a folder", "no space") else 0), err
    assert untouched.read_text() == "mine"


def _until(holds: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
