"""What ranks print is in their agent's report while they live: launcher, agent and gateway are real."""

from __future__ import annotations

import hashlib
import signal
import sys
import threading
from pathlib import Path

import pytest

from falcon_core.wire.launcher.printed import Printed
from falcon_core.wire.reporting.messages import Summary
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PROGRAMS, Pod, eventually

FLOOD_BYTES = 150_000_000  # raising.py
SAID = "ValueError: batch 4711 has 63 features, expected 64 (raising.py:"
pytestmark = pytest.mark.timeout(400)


def printed(summary: Summary, local_rank: int = 0) -> list[Printed]:
    return [one for each in summary.output if each.local_rank == local_rank for one in each.printed]


def said(summary: Summary, local_rank: int = 0) -> bool:
    return any(one.text.startswith(SAID) for one in printed(summary, local_rank))


def start(make_pod: MakePod, folder: Path, what: str, procs: int = 1) -> Pod:
    pod = make_pod(procs, sys.executable, str(PROGRAMS / "raising.py"), str(folder), what)
    pod.start_agent()
    pod.plan(1, "Run")
    return pod


async def runs(pod: Pod) -> None:
    await pod.reported("it runs", lambda s: s.launch is not None and s.launch.state == "Running")


async def test_what_a_rank_raised_is_reported_while_its_process_lives(make_pod: MakePod, tmp_path: Path) -> None:
    pod = start(make_pod, tmp_path, "raise", procs=2)
    await runs(pod)
    (tmp_path / "go").touch()
    report = await pod.reported("both ranks' words", lambda s: said(s, 0) and said(s, 1))
    assert report.launch is not None
    assert [rank.state for rank in report.launch.ranks] == ["Running", "Running"]
    (words,) = printed(report)
    assert words.raised
    assert words.text.endswith(" in step)")
    assert words.unix_ns >= int((tmp_path / "printed-0").read_text())
    assert words.unix_ns <= report.unix_ns


async def test_a_crash_at_a_programs_end_is_reported_with_the_error_that_ended_it(
    make_pod: MakePod, python_dir: Path, tmp_path: Path
) -> None:
    program = (sys.executable, str(PROGRAMS / "raising.py"), str(tmp_path), "crash")
    pod = make_pod(1, *program, options=("--python", str(python_dir)))
    pod.start_agent()
    pod.plan(1, "Run")
    await runs(pod)
    (tmp_path / "go").touch()
    report = await pod.reported("it crashed", lambda s: s.launch is not None and s.launch.ranks[0].state == "Exited")
    assert report.launch is not None
    assert report.launch.ranks[0].signal == signal.SIGABRT
    assert said(report)
    assert report.output[0].uncaught_unix_ns > 0, "without it the crash would count as the cause"


async def test_what_a_generation_raised_is_not_said_of_the_next(
    make_pod: MakePod, python_dir: Path, tmp_path: Path
) -> None:
    """Processes that need a moment to end, as those that clean up do, are those of the generation before."""
    program = (sys.executable, str(PROGRAMS / "raising.py"), str(tmp_path), "again")
    pod = make_pod(1, *program, options=("--python", str(python_dir)))
    pod.start_agent()
    pod.plan(1, "Run")
    await runs(pod)
    (tmp_path / "go").touch()
    await pod.reported("it raised", lambda s: bool(s.output) and s.output[0].uncaught_unix_ns > 0)
    pod.plan(2, "Stop")
    pod.plan(2, "Run")
    report = await pod.reported("the next one prints an error", lambda s: s.generation == 2 and said(s))
    assert report.output[0].uncaught_unix_ns == 0


async def test_exceptions_that_are_logged_again_and_again_are_one_word_and_no_storm(
    make_pod: MakePod, tmp_path: Path
) -> None:
    pod = start(make_pod, tmp_path, "catch")
    await runs(pod)
    before = pod.summary()
    (tmp_path / "go").touch()

    def all_counted(summary: Summary) -> bool:
        return any(each.more >= 100 for each in summary.output)

    report = await pod.reported("all of them", lambda s: all_counted(s) and said(s))
    (words,) = printed(report)
    assert words.text.startswith(SAID), "its newest words"
    assert before is not None
    assert report.sequence - before.sequence < 10, "reported at their first, and at the usual times"


async def test_a_flood_is_relayed_whole_and_hides_no_traceback(make_pod: MakePod, tmp_path: Path) -> None:
    """Fifty megabytes a second for three seconds; the bytes that arrive are those that were printed."""
    pod = start(make_pod, tmp_path, "flood")
    stream = pod.launcher.process.stdout
    assert stream is not None
    counted = [0]
    digest = hashlib.sha256()

    def relay() -> None:
        while data := stream.read1(1 << 20):  # type: ignore[attr-defined]  # a BufferedReader
            counted[0] += len(data)
            digest.update(data)

    reader = threading.Thread(target=relay, daemon=True)
    reader.start()
    await runs(pod)
    (tmp_path / "go").touch()
    report = await pod.reported("its words", said)
    (words,) = printed(report)
    assert words.raised
    block = b"".join(b"step %07d: loss 2.3172, 812 tokens/s, lr 0.0003\n" % number for number in range(2000))
    blocks = -(-FLOOD_BYTES // len(block))
    expected = hashlib.sha256(b"training\n")
    for _ in range(blocks):
        expected.update(block)

    async def relayed() -> bool:
        return counted[0] >= len(b"training\n") + blocks * len(block)

    await eventually(relayed, "every byte")
    assert digest.hexdigest() == expected.hexdigest()


async def test_a_file_that_is_none_blinds_the_agent_to_that_rank_alone(make_pod: MakePod, tmp_path: Path) -> None:
    """Ranks may write in the launcher's folder: where one has put a folder, the launcher cannot put its file."""
    pod = make_pod(2, sys.executable, str(PROGRAMS / "raising.py"), str(tmp_path), "raise")
    pod.launcher.wait(state="Idle")
    (pod.launcher.run_dir / "launch" / "output.0").mkdir()
    pod.start_agent()
    pod.plan(1, "Run")
    await runs(pod)
    (tmp_path / "go").touch()
    report = await pod.reported("the other rank's words", lambda s: said(s, 1))
    assert printed(report, 0) == []
    await pod.logged("a rank's output cannot be read")
