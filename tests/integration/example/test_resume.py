"""The example's promise: however often it is killed, its losses are those of an undisturbed run, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dev.kubectl import wait_for
from tests.integration.forking import Rank, Ranks

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "examples" / "train_gpt.py"
RANKS = 3  # with two, the order in which gradients are added cannot matter
SMALL = ("--width=96", "--layers=3", "--context=16", "--batch-size=1", "--micro-batches=2", "--log-json")
STEPS = 12

Line = dict[str, Any]


class Run:
    """One life of the process group; rank 0's log goes to a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._logs = [log.with_suffix(f".{rank}") for rank in range(RANKS)]
        self._errors = [log.with_suffix(f".errors-{rank}") for rank in range(RANKS)]
        ranks = [Rank({}, stdout, stderr) for stdout, stderr in zip(self._logs, self._errors, strict=True)]
        self.ranks = Ranks([str(SCRIPT), *SMALL, *arguments], ranks, {"CUDA_VISIBLE_DEVICES": ""})

    def lines(self) -> list[Line]:
        """Return what rank 0 has logged so far; a line that is being written is left out."""
        text = self._logs[0].read_text() if self._logs[0].exists() else ""
        return [
            json.loads(line) for line in text.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")
        ]

    def wait(self) -> list[Line]:
        """Wait until every rank ended well; return the log."""
        codes = self.ranks.wait(timeout_seconds=100)
        assert codes == [0] * RANKS, "\n".join(path.read_text() for path in self._errors)
        return self.lines()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.ranks.kill()


def _is_over(pid: int) -> bool:
    """Check whether a rank has ended; the process that forked the ranks waits for them in turn."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def _losses(log: list[Line]) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in log if line["event"] == "step"}


@pytest.mark.timeout(300)
def test_a_killed_run_resumes_with_the_losses_of_an_undisturbed_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with Run(tmp_path / "undisturbed", f"--steps={STEPS}") as run:
        undisturbed = run.wait()

    saving = (f"--checkpoint-dir={folder}", "--checkpoint-every=5")
    with Run(tmp_path / "killed", "--steps=100000", *saving) as run:
        deadline = time.monotonic() + 100
        while not list(folder.glob("step-*.pt")):
            assert time.monotonic() < deadline, f"no checkpoint was written: {run.lines()}"
            time.sleep(0.01)
        first, second, third = run.ranks.pids()
        os.kill(second, signal.SIGSTOP)  # the others come to wait for it in an all-reduce
        time.sleep(0.5)
        os.kill(first, signal.SIGTERM)
        wait_for("SIGTERM ends a rank inside a collective, too", lambda: _is_over(first), timeout_seconds=100)
        os.kill(second, signal.SIGKILL)
        os.kill(third, signal.SIGKILL)
        assert run.ranks.wait(timeout_seconds=100) == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGKILL]
    # A writer that was killed in the middle would leave this, and a reader must pass it over.
    (folder / "step-00000099.1.tmp").write_bytes(b"half a checkpoint")
    oldest, *newer = sorted(folder.glob("step-*.pt"))
    for path in newer:
        path.unlink()  # the resumed run shall have steps to repeat, also where the kill came late
    saved_step = int(oldest.stem.removeprefix("step-"))
    assert 0 < saved_step < STEPS

    with Run(tmp_path / "resumed", f"--steps={STEPS}", *saving) as run:
        resumed = run.wait()
    assert resumed[0]["resumed_from"] == saved_step
    expected = _losses(undisturbed)
    assert _losses(resumed) == {step: loss for step, loss in expected.items() if step > saved_step}
    assert resumed[-1]["final_loss"] == undisturbed[-1]["final_loss"]
    assert expected[STEPS] < expected[1], "it learns"
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000010.pt", "step-00000012.pt"]
