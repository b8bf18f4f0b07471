"""A rank dies in the middle of an iteration of real PyTorch processes; the others end with the undisturbed sum."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from falcon_core.planning.partial_iteration import Progress, Scenario, SegmentState, resume
from tests.integration.ports import free_port

PYTHON = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
PROGRAM = Path(__file__).parent / "programs" / "broken_iteration.py"
MICROBATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
FAILED = 1

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    ("finished", "reduced", "scenario", "recomputed"),
    [
        ([3, 2, 1], [], Scenario.BEFORE_REDUCE, 4),
        ([4, 4, 4], ["second"], Scenario.DURING_REDUCE, 4),
        ([4, 4, 4], ["first", "second"], Scenario.NOTHING_LOST, 0),
    ],
    ids=["before the all-reduce", "between two segments", "after the all-reduce"],
)
def test_the_survivors_end_with_the_whole_batchs_gradient(
    finished: list[int], reduced: list[str], scenario: Scenario, recomputed: int
) -> None:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run the tests through make test-integration")
    ranks = [
        Progress(
            rank=rank,
            microbatches=tuple(numbers),
            finished=finished[rank],
            segments=dict.fromkeys(reduced, SegmentState.REDUCED),
        )
        for rank, numbers in enumerate(MICROBATCHES)
    ]
    plan = resume(ranks, {FAILED}, ["first", "second"])
    assert (plan.scenario, plan.recomputed) == (scenario, recomputed)
    spec = {
        "microbatches": MICROBATCHES,
        "finished": finished,
        "failed": FAILED,
        "reduced": reduced,
        "plan": msgspec.to_builtins(plan, str_keys=True),
        "ports": [free_port(), free_port()],
    }
    process = subprocess.Popen(
        [PYTHON, PROGRAM, json.dumps(spec)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its ranks too
    *survivors, last = [json.loads(line) for line in printed.splitlines()]
    assert last == {"exit_codes": [0, 9, 0]}
    assert sorted(survivor["rank"] for survivor in survivors) == [0, 2]
    for found in survivors:
        assert found["size"] > 1.0, "a gradient that is zero proves nothing"
        assert found["error"] < 1e-12
