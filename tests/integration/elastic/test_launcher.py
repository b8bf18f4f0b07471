"""The launcher of ranks that go on without a lost one: what ends it, and how its ranks end then."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.forking import PYTHON
from tests.integration.shim.launching import wait_for

PROGRAM = Path(__file__).parent / "programs" / "ending.py"
AGENT = Path(__file__).parents[3] / "agent"
ENDED_EXIT = 77  # falcon_torch.elastic.member.ENDED_EXIT
TORCH_SECONDS = 150  # an import of PyTorch on a shared core
# The first pod alone replaces no rank before there is a group. Of this one's first pod nothing runs here.
SECOND_POD = {"PET_NNODES": "2", "PET_NODE_RANK": "1"}
pytestmark = pytest.mark.timeout(240)

Launch = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start the launcher with two ranks of the program, which end with the test; and more of its environment."""
    if not PYTHON.is_file():
        pytest.fail("PyTorch is not installed: run the tests through make test-integration")
    started: list[subprocess.Popen[bytes]] = []

    def begin(**more: str) -> subprocess.Popen[bytes]:
        command = [str(PYTHON), "-m", "falcon_torch.elastic", "--procs", "2", str(PROGRAM), str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(AGENT), **more}
        started.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return started[-1]

    yield begin
    for launcher in started:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait(timeout=10)


def test_a_signal_reaches_all_ranks_and_each_has_its_time_to_end(launch: Launch, tmp_path: Path) -> None:
    launcher = launch()
    for rank in (0, 1):
        wait_for(tmp_path / f"begun-{rank}", TORCH_SECONDS)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=20) == 128 + signal.SIGTERM
    assert (tmp_path / "saved").exists(), "rank 0 has ended a second earlier"


def test_a_rank_that_fails_before_the_first_group_ends_all_with_time_to_save(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "failing").touch()
    assert launch().wait(timeout=TORCH_SECONDS) == 7
    assert (tmp_path / "saved").exists(), "rank 1"


def test_a_failure_whose_replacement_comes_when_the_training_is_over_is_no_success(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "too-late").touch()
    assert launch(**SECOND_POD).wait(timeout=TORCH_SECONDS) == 5
    assert (tmp_path / "saved").exists(), "rank 0 ends by itself"


def test_a_pod_that_is_made_again_when_the_training_is_over_says_so_at_once(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "over").touch()
    assert launch(**SECOND_POD).wait(timeout=TORCH_SECONDS) == ENDED_EXIT, "and not the 5 of a replacement"
    assert (tmp_path / "saved").exists(), "rank 0 ends by itself"
