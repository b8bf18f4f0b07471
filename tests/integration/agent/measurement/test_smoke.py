"""The smoke test beside a restart, from the operator's plan to the operator's knowledge; the ranks train meanwhile."""

from __future__ import annotations

import pytest

from tests.integration.agent.conftest import MakePod

pytestmark = pytest.mark.alone  # it counts what a thread of lowest priority does in a tenth of a second


async def test_a_pod_reports_its_smoke_test_while_its_ranks_train(make_pod: MakePod) -> None:
    pod = make_pod(1)
    pod.start_agent()
    pod.plan(1, "Stop", smoke=7)
    stopped = await pod.reported("the first test", lambda summary: summary.smoke is not None)
    assert stopped.smoke is not None
    assert (stopped.smoke.number, stopped.smoke.why, stopped.smoke.backend) == (7, "", "falcon-launch")
    assert stopped.smoke.micros["fp32"] > 0
    assert stopped.launch is not None
    assert stopped.launch.dead_below == 1
    pod.plan(1, "Run", smoke=8)
    pod.allow(1_000)
    running = await pod.reported(
        "the second test", lambda summary: summary.smoke is not None and summary.smoke.number == 8
    )
    assert running.smoke is not None
    assert running.smoke.problems == []
    await pod.trained(3)
