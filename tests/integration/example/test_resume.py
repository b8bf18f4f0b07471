"""The example's promise: however often it is killed, its losses are those of an undisturbed run, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "examples" / "train_gpt.py"
PYTHON = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
RANKS = 3  # with two, the order in which gradients are added cannot matter
SMALL = ("--width=96", "--layers=3", "--context=16", "--batch-size=1", "--micro-batches=2", "--log-json")
STEPS = 12

Line = dict[str, Any]


class Run:
    """One life of the process group; rank 0's log goes to a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        if not PYTHON.is_file():
            pytest.fail("PyTorch is not installed: run the tests through make test-integration")
        self._log = log
        self.processes: list[subprocess.Popen[bytes]] = []
        port = free_port()
        for rank in range(RANKS):
            place = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": RANKS,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            with log.with_suffix(f".{rank}").open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [PYTHON, SCRIPT, *SMALL, *arguments],
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={
                            **os.environ,
                            "CUDA_VISIBLE_DEVICES": "",
                            **{key: str(value) for key, value in place.items()},
                        },
                    )
                )

    def lines(self) -> list[Line]:
        """Return what rank 0 has logged so far; a line that is being written is left out."""
        text = self._log.with_suffix(".0").read_text()
        return [
            json.loads(line) for line in text.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")
        ]

    def wait(self) -> list[Line]:
        """Wait until every rank ended well; return the log."""
        codes = [process.wait(timeout=100) for process in self.processes]
        assert codes == [0] * RANKS, self._log.with_suffix(".0").read_text()
        return self.lines()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(timeout=10)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _losses(log: list[Line]) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in log if line["event"] == "step"}


@pytest.mark.timeout(300)  # nine starts of PyTorch
def test_a_killed_run_resumes_with_the_losses_of_an_undisturbed_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with Run(tmp_path / "undisturbed", f"--steps={STEPS}") as run:
        undisturbed = run.wait()

    saving = (f"--checkpoint-dir={folder}", "--checkpoint-every=5")
    with Run(tmp_path / "killed", "--steps=100000", *saving) as run:
        deadline = time.monotonic() + 100
        while not list(folder.glob("step-*.pt")):
            assert run.processes[0].poll() is None, run.lines()
            assert time.monotonic() < deadline, "no checkpoint was written"
            time.sleep(0.01)
        run.processes[1].send_signal(signal.SIGSTOP)  # the others come to wait for it in an all-reduce
        time.sleep(0.5)
        run.processes[0].terminate()
        assert run.processes[0].wait(timeout=10) == -signal.SIGTERM, "SIGTERM ends a rank inside a collective, too"
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
