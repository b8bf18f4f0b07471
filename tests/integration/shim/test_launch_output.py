"""The ranks' output through falcon-launch: every byte, every line whole, and a bounded end kept for each rank."""

from __future__ import annotations

import random
import sys
import threading
import time

from falcon_core.wire.launch import LaunchPlan
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher

TAIL_BYTES = 65536


def _output(launcher: Launcher, procs: int = 1) -> tuple[bytes, bytes]:
    """Run one generation to its end; return its standard output and error, read as they come."""
    read: list[tuple[bytes, bytes]] = []
    reader = threading.Thread(target=lambda: read.append(launcher.process.communicate(timeout=60)))
    reader.start()
    launcher.run(procs=procs)
    launcher.wait(state="Exited", timeout_seconds=40)
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


def test_long_lines_of_several_ranks_stay_whole_and_each_rank_has_its_own_tail(start: Start) -> None:
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
        tail = (launcher.run_dir / "launch" / f"tail-{rank}").read_bytes()
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
