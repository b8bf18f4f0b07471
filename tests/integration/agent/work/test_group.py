"""A rank of a group that goes on without it is lost: the report has how, and what followed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from falcon_core.wire.reporting.groups import GroupReport
from falcon_core.wire.reporting.messages import Summary
from tests.integration.agent.conftest import AGENT, MakePod
from tests.integration.agent.pod import PROGRAMS, PYTHON

pytestmark = pytest.mark.timeout(400)


def said(summary: Summary) -> GroupReport:
    assert summary.groups is not None
    return summary.groups


async def test_a_lost_rank_and_its_replacement_are_reported(make_pod: MakePod, tmp_path: Path) -> None:
    launcher = ("env", f"PYTHONPATH={AGENT}", str(PYTHON), "-m", "falcon_torch.elastic", "--procs", "3")
    pod = make_pod(3, *launcher, str(PROGRAMS / "group.py"), str(tmp_path), options=("--launcher", "own"))
    pod.start_agent()
    pod.plan(1, "Run")

    def size(summary: Summary, number: int) -> int:
        group = summary.groups.group if summary.groups is not None else None
        return group.size if group is not None and group.number >= number else 0

    whole = said(await pod.reported("the first group", lambda summary: size(summary, 1) == 3))
    assert whole.group is not None
    assert (whole.group.number, whole.group.wanted, whole.group.missing, whole.ends) == (1, 3, [], [])

    rings = (pod.launcher.run_dir / "launch" / "rings").glob("g1-r1-*.ring")
    (process,) = (int(path.stem.split("-")[2]) for path in rings)
    os.kill(process, signal.SIGKILL)
    again = said(await pod.reported("the third group", lambda summary: size(summary, 3) == 3))
    assert again.group is not None
    _, fewer, more = again.group.changes
    assert (fewer.number, fewer.before, fewer.size, fewer.joined) == (2, 3, 2, [])
    # A number of the launcher's choice names the process in both.
    (end,) = again.ends
    assert (end.rank, end.code) == (1, -signal.SIGKILL)
    assert [(lost.rank, lost.process, lost.how) for lost in fewer.lost] == [(1, end.process, "Gone")]
    assert (more.number, more.before, more.size, more.lost, more.joined) == (3, 2, 3, [], [1])
    assert fewer.unix_ms <= more.unix_ms
    assert pod.launcher.process.poll() is None
