"""The last words of processes that failed, as the agent reads them beside the launcher's status."""

from __future__ import annotations

from pathlib import Path

import msgspec

from falcon_agent.ends import Ends
from falcon_agent.run_dir import RunDir
from falcon_core.wire.launch import LaunchRank, LaunchStatus

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
    (tmp_path / "launch").mkdir()
    for local_rank in range(3):
        (tmp_path / "launch" / f"tail-{local_rank}").write_text(TRACEBACK)
    running = LaunchRank(local_rank=3, rank=3, pid=103, state="Running", started_unix_ns=1)
    ends = Ends(run_dir)
    found = ends.add(status(exited(0, exit_code=1), exited(1, exit_code=0), exited(2, signal=6), running))
    assert found is not None
    said = "ValueError: bad (train.py:4 in main)"
    assert [rank.last_words for rank in found.ranks] == [said, "", said, ""]

    (tmp_path / "launch" / "tail-0").write_text("what came later")
    assert ends.add(status(exited(0, exit_code=1))) == status(
        msgspec.structs.replace(exited(0, exit_code=1), last_words=said)
    ), "read once"
    later = ends.add(status(exited(0, exit_code=1), generation=2))
    assert later is not None
    assert later.ranks[0].last_words == "what came later"


def test_words_of_an_older_generation_are_not_taken_for_those_of_the_next(tmp_path: Path) -> None:
    """While the launcher stops the older one, its status names the newer one beside the older one's processes."""
    tail = tmp_path / "launch" / "tail-0"
    tail.parent.mkdir()
    tail.write_text("KeyError: of the first generation")
    ends = Ends(RunDir(tmp_path))
    ends.add(status(exited(0, exit_code=1)))
    ends.add(msgspec.structs.replace(status(exited(0, exit_code=1), generation=2), state="Stopping"))
    tail.write_text("IndexError: of the second generation")
    found = ends.add(status(exited(0, exit_code=1), generation=2))
    assert found is not None
    assert found.ranks[0].last_words == "IndexError: of the second generation"


def test_what_is_no_tail_says_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    (tmp_path / "launch" / "tail-0").mkdir(parents=True)
    ends = Ends(run_dir)
    found = ends.add(status(exited(0, exit_code=1), exited(1, exit_code=1)))
    assert found is not None
    assert [rank.last_words for rank in found.ranks] == ["", ""]
    assert ends.add(None) is None
