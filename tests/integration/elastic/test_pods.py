"""A pod is lost with all of its processes, and made again for the same generation: the other pods train on.

Three launchers stand for the pods, each with a process group of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.integration.forking import PYTHON
from tests.integration.ports import free_port

PROGRAM = Path(__file__).parent / "programs" / "pods.py"
AGENT = Path(__file__).parents[3] / "agent"
PODS, STEPS, MICRO_BATCHES = 3, 40, 6
LOST, LOST_IN = 1, 8  # the pod, and a step that it has begun
WAIT_SECONDS = 200  # imports of PyTorch on a shared core
pytestmark = pytest.mark.timeout(420)

Launch = Callable[[int, str], "subprocess.Popen[bytes]"]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start the launcher of a pod, whose processes end with the test; the name of the start is in its logs."""
    if not PYTHON.is_file():
        pytest.fail("PyTorch is not installed: run the tests through make test-integration")
    started: list[subprocess.Popen[bytes]] = []
    common = {"PYTHONPATH": str(AGENT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def begin(pod: int, start: str) -> subprocess.Popen[bytes]:
        program = [str(PROGRAM), str(tmp_path), str(STEPS), str(MICRO_BATCHES)]
        command = [str(PYTHON), "-m", "falcon_torch.elastic", "--procs", "1", *program]
        own = {"PET_NNODES": str(PODS), "PET_NODE_RANK": str(pod), "START": start}
        started.append(subprocess.Popen(command, env={**os.environ, **common, **own}, start_new_session=True))
        return started[-1]

    yield begin
    for launcher in started:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait(timeout=10)


def logged(log: Path, kind: str) -> list[list[Any]]:
    if not log.exists():
        return []
    lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [line[1:] for line in lines if line[0] == kind]


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {what}"
        time.sleep(0.02)


@pytest.mark.slow  # e2e/failures/test_elastic deletes a pod on the cluster
def test_the_ranks_of_a_pod_that_is_made_again_join_those_that_have_trained_on(launch: Launch, tmp_path: Path) -> None:
    pods = [launch(pod, "first") for pod in range(PODS)]
    first = [tmp_path / f"first-{pod}" for pod in range(PODS)]
    again = tmp_path / f"again-{LOST}"
    wait_until("training", lambda: any(step >= LOST_IN for step, _, _ in logged(first[LOST], "micro")))
    os.killpg(pods[LOST].pid, signal.SIGKILL)
    assert pods[LOST].wait(timeout=10) == -signal.SIGKILL
    wait_until("fewer ranks", lambda: any(ranks == PODS - 1 for _, ranks in logged(first[0], "step")))

    pods[LOST] = launch(LOST, "again")
    assert [pod.wait(timeout=WAIT_SECONDS) for pod in pods] == [0, 0, 0]

    for survivor in (first[0], first[2]):
        assert_trained_on(survivor)
    ((joined,),) = logged(again, "joined")
    assert LOST_IN <= joined < STEPS, "it begins in the step in which the others are"
    assert [step for step, _ in logged(again, "step")] == list(range(joined, STEPS))
    assert_each_once([first[0], first[2], again], first[LOST])
    ((reference,),) = logged(first[0], "end")
    for step, number, loss in all_of([*first, again], "micro"):
        assert loss == pytest.approx(reference[step][number], rel=1e-9)


def assert_trained_on(survivor: Path) -> None:
    """Check that a rank did each step once, and first with all ranks, then with fewer, then with all again."""
    steps = logged(survivor, "step")
    assert [step for step, _ in steps] == list(range(STEPS)), "no step is left out or done again"
    sizes = [ranks for _, ranks in steps]
    assert [sizes[0], min(sizes), sizes[-1]] == [PODS, PODS - 1, PODS]


def assert_each_once(living: list[Path], lost: Path) -> None:
    """Check that each step had its global batch, and no micro-batch twice. ``lost``: its last step does not count."""
    everything = {(step, number) for step in range(STEPS) for number in range(MICRO_BATCHES)}
    assert {(step, number) for step, number, _ in all_of([*living, lost], "micro")} == everything
    last = logged(lost, "micro")[-1][0]
    computed = [(step, number) for step, number, _ in all_of(living, "micro")]
    computed += [(step, number) for step, number, _ in logged(lost, "micro") if step < last]
    assert len(set(computed)) == len(computed), "none of them twice"


def all_of(logs: list[Path], kind: str) -> list[list[Any]]:
    return list(chain.from_iterable(logged(log, kind) for log in logs))
