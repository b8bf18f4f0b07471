"""The last words of processes that failed, as the agent reads them beside the launcher's status."""

from __future__ import annotations

from pathlib import Path

import msgspec

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.output.last_words import Ends
from falcon_core.errors.judge import shipped_judge
from falcon_core.wire.launcher.launch import FirstEnd, LaunchRank, LaunchStatus
from tests.unit.agent.outputs import OutputWriter
from tests.unit.errors.lines import TORCHRUN

TRACEBACK = 'Traceback (most recent call last):\n  File "/job/train.py", line 4, in main\n    f()\nValueError: bad\n'


def exited(local_rank: int, *, exit_code: int | None = None, signal: int | None = None) -> LaunchRank:
    return LaunchRank(
        local_rank=local_rank,
        rank=local_rank,
        pid=100 + local_rank,
        state="Exited",
        exit_code=exit_code,
        signal=signal,
        started_unix_ns=1,
    )


def status(*ranks: LaunchRank, generation: int = 1) -> LaunchStatus:
    return LaunchStatus(generation=generation, dead_below=generation, state="Exited", ranks=list(ranks))


def test_words_of_those_that_failed_alone(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for local_rank in range(3):
        OutputWriter(tmp_path, local_rank).write(TRACEBACK.encode())
    running = LaunchRank(local_rank=3, rank=3, pid=103, state="Running", started_unix_ns=1)
    ends = Ends(run_dir, shipped_judge)
    found = ends.add(status(exited(0, exit_code=1), exited(1, exit_code=0), exited(2, signal=6), running))
    assert found is not None
    said = "ValueError: bad (train.py:4 in main)"
    assert [rank.last_words for rank in found.ranks] == [said, "", said, ""]

    OutputWriter(tmp_path, generation=2).write(b"what came later")
    assert ends.add(status(exited(0, exit_code=1))) == status(
        msgspec.structs.replace(exited(0, exit_code=1), last_words=said)
    ), "read once"
    stopping = msgspec.structs.replace(status(exited(0, signal=15), generation=2), state="Stopping")
    assert ends.add(stopping) == stopping, "the processes are those of the generation before"
    before = ends.before(stopping)
    assert before is not None
    assert (before.generation, before.ranks[0].last_words) == (1, said), "an agent that was away tells of both at once"
    later = ends.add(status(exited(0, exit_code=1), generation=2))
    assert later is not None
    assert later.ranks[0].last_words == "what came later"
    assert ends.before(later) is None


def test_of_a_launchers_output_the_words_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    peer = TRACEBACK.replace("ValueError: bad", "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    mixed = [f"[rank{rank}]: {line}\n" for pair in zip(peer.splitlines(), TRACEBACK.splitlines(), strict=True)
             for rank, line in zip((0, 3), pair, strict=True)]  # fmt: skip
    OutputWriter(tmp_path).write(("".join(mixed) + TORCHRUN.replace("-9 (", "1 (")).encode())
    found = Ends(RunDir(tmp_path), shipped_judge).add(status(exited(0, exit_code=1)))
    assert found is not None
    assert found.ranks[0].last_words == "ValueError: bad (train.py:4 in main)"
    assert found.ranks[0].first_end == FirstEnd(rank=3, local_rank=1, exit_code=1)


def test_what_is_no_output_says_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    (tmp_path / "launch" / "output.0").mkdir(parents=True)
    ends = Ends(run_dir, shipped_judge)
    found = ends.add(status(exited(0, exit_code=1), exited(1, exit_code=1)))
    assert found is not None
    assert [rank.last_words for rank in found.ranks] == ["", ""]
    assert ends.add(None) is None
