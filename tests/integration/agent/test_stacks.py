"""Ranks that stand still: their agent takes the Python stacks, and they go on unharmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from falcon_core.wire.reporting.messages import Summary
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PROGRAM

pytestmark = pytest.mark.timeout(400)


async def test_the_stack_of_each_silent_rank_is_reported(make_pod: MakePod, python_dir: Path) -> None:
    pod = make_pod(2, options=("--python", str(python_dir)))
    pod.start_agent()
    pod.allow(60)
    pod.plan(1, "Run")
    await pod.trained(60)

    def standing(summary: Summary) -> bool:
        return len(summary.ranks) == 2 and all(
            any(f"({PROGRAM.name}:" in frame for frame in rank.stack) for rank in summary.ranks
        )

    report = await pod.reported("both ranks' stacks", standing)
    assert all(len(rank.stack) > 1 for rank in report.ranks)
    pod.allow(120)
    await pod.trained(120)
    await pod.reported("no stack any more", lambda s: len(s.ranks) == 2 and not any(rank.stack for rank in s.ranks))
    status = pod.launcher.status()
    assert status is not None
    assert [rank.state for rank in status.ranks] == ["Running", "Running"]
