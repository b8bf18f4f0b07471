"""A set-up call that real ranks made again in place is in their agent's report: launcher to gateway are real."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PYTHON, eventually
from tests.integration.ports import free_port
from tests.integration.refusing import Network

PROGRAM = Path(__file__).parents[1] / "shim" / "programs" / "joining.py"
AWAY_SECONDS = 0.5  # the shim's first pause lasts 0.75 s at least

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="skipped: a network of its own takes root"),
]


async def test_the_retries_are_reported_while_the_rank_lives(
    make_pod: MakePod, network: Network, tmp_path: Path
) -> None:
    port = free_port()
    network.refuse(but=port)
    pod = make_pod(2, *network.command(str(PYTHON), str(PROGRAM), str(tmp_path)))
    pod.start_agent()
    pod.plan(1, "Run", retries=5, port=port)
    report = await pod.reported("a retry", lambda summary: any(rank.retries for rank in summary.ranks))
    assert max(rank.retries for rank in report.ranks) <= 5
    await asyncio.sleep(AWAY_SECONDS)
    network.admit()

    async def joined() -> bool:
        return all((tmp_path / f"joined-{rank}").exists() for rank in range(2))

    await eventually(joined, "both ranks in one group")
    assert pod.summary() is not None
