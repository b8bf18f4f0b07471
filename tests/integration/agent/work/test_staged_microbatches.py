"""Micro-batches that move between pipelines of real ranks: their calls show what a micro-batch takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PROGRAMS, PYTHON, Pod
from tests.integration.agent.work.test_microbatches import compute_ms, in_step, iteration_ms, settled, slow_down

EVEN, MOVED = [6, 6, 6, 6], [8, 4, 8, 4]  # ranks 1 and 3 are a replica
MICRO_MS = 20
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.alone,  # ratios of times
    pytest.mark.slow,  # e2e/campaigns/test_layout_campaign moves them between pipelines on the cluster
]


@pytest.fixture
def pod(make_pod: MakePod, python_dir: Path) -> Pod:
    """Return a pod of two replicas of two stages, with its agent."""
    slow_down(python_dir.parent, 1.0)
    program = (str(PYTHON), str(PROGRAMS / "staged_micro_batches.py"), str(python_dir.parent))
    made = make_pod(4, *program, options=("--python", str(python_dir)))
    made.start_agent()
    made.plan(1, "Run")
    return made


async def test_what_is_fixed_of_a_stages_computation_is_told_from_its_micro_batches(pod: Pod) -> None:
    even = await settled(pod, "a healthy job", EVEN, 1.0)
    for rank in even.ranks:
        assert rank.micro is not None
        assert rank.micro.micro_ns is not None, "it shows in the calls"
        assert abs(rank.micro.micro_ns / 1e6 / MICRO_MS - 1) < 0.15
    slow_down(pod.folder, 2.0)
    before = await settled(pod, "a slow rank", EVEN, 2.0)
    pod.order(MOVED)
    after = await settled(pod, "as slow a rank, with fewer micro-batches", MOVED, 2.0)
    assert in_step(pod) == MOVED
    assert iteration_ms(after) < 0.9 * iteration_ms(before)
    for rank in (after.ranks[0], *after.ranks[2:]):
        assert rank.healthy_compute_ns is not None
        assert abs(compute_ms(rank) / (rank.healthy_compute_ns / 1e6) - 1) < 0.1, "the others are as fast as they were"
    slow_down(pod.folder, 1.0)
    await settled(pod, "a rank that is well again", MOVED, 1.0)
