"""What makes a real rank slow without any counter of the machine: its data, or Python's garbage collector."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from falcon_core.model import Cause
from falcon_core.recovery.model.observation import RankSeen
from falcon_core.signals.job.cause import explain
from falcon_core.wire.reporting.messages import RankSignals, Summary
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PROGRAMS, PYTHON, Pod

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]
PROGRAM = PROGRAMS / "stalling.py"
replace = msgspec.structs.replace


def seen(rank: RankSignals) -> RankSeen:
    return RankSeen(rank=rank.rank, replica=0, process="Running", sent=rank, fresh=True)


def sampled(summary: Summary) -> bool:
    return len(summary.ranks) == 2 and summary.ranks[1].samples is not None and summary.ranks[1].detailed


def first_place(summary: Summary) -> list[str]:
    """Return the frames of the place where the most samples of rank 1 lie."""
    samples = summary.ranks[1].samples
    assert samples is not None
    return samples.places[0].frames


def cause_of(summary: Summary, excess: float) -> Cause:
    fast, slow = (seen(rank).cpu for rank in summary.ranks)
    assert slow.collecting is not None, "its interpreter counts collections"
    return explain(replace(slow, excess=excess, stall_share=summary.ranks[1].stall_share), [fast]).cause


async def slowed(make_pod: MakePod, folder: Path, python_dir: Path, fault: str) -> Pod:
    """Return a pod whose rank 1 becomes slow in this way."""
    (folder / "fault").write_text("")
    pod = make_pod(2, str(PYTHON), str(PROGRAM), str(folder), options=("--python", str(python_dir)))
    pod.start_agent()
    pod.allow(1_000_000)
    pod.plan(1, "Run")
    await pod.trained(400)
    (folder / "fault").write_text(fault)
    return pod


async def test_late_data_and_the_ranks_go_on_unharmed(make_pod: MakePod, tmp_path: Path, python_dir: Path) -> None:
    pod = await slowed(make_pod, tmp_path, python_dir, "late")

    def late(summary: Summary) -> bool:
        place = first_place(summary)
        return (summary.ranks[1].stall_share or 0) > 0.7 and place[0].startswith("read_batch (stalling.py:")

    summary = await pod.reported("that the other gaps are as long as before", lambda each: sampled(each) and late(each))
    assert cause_of(summary, 0.5) is Cause.LATE_DATA
    assert summary.ranks[0].samples is None, "only the rank that computes longer is sampled"
    (tmp_path / "fault").write_text("")

    def over(summary: Summary) -> bool:
        return all(rank.onset is None and rank.samples is None for rank in summary.ranks)

    await pod.reported("the relief", over)
    status = pod.launcher.status()
    assert status is not None
    assert [rank.state for rank in status.ranks] == ["Running", "Running"]


async def test_garbage_collections(make_pod: MakePod, tmp_path: Path, python_dir: Path) -> None:
    pod = await slowed(make_pod, tmp_path, python_dir, "garbage")

    def collects(summary: Summary) -> bool:
        fraction = summary.ranks[1].collecting_fraction or 0
        return fraction > 0.1 and any("make_garbage (stalling.py:" in frame for frame in first_place(summary))

    summary = await pod.reported("collections of rank 1", lambda each: sampled(each) and collects(each))
    rank = summary.ranks[1]
    assert (rank.healthy_collecting_fraction or 0.0) < 0.02
    assert cause_of(summary, rank.collecting_fraction or 0.0) is Cause.GARBAGE_COLLECTION
