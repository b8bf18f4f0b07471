"""What makes a real rank slow, or look slow, without any counter of the machine.

That is late data, Python's garbage collector, or a wait for another rank where no call is seen.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from falcon_core.model import Cause
from falcon_core.recovery import Look, Policy, RecoveryState, machine
from falcon_core.recovery.model.observation import LauncherSeen, MemberSeen, Observation, RankSeen
from falcon_core.recovery.model.slowdown import Culprit
from falcon_core.signals.job.cause import explain
from falcon_core.wire.reporting.messages import RankSignals, Summary
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PROGRAMS, PYTHON, Pod

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]
PROGRAM = PROGRAMS / "stalling.py"
WAITING = PROGRAMS / "waiting.py"
RANKS = 3  # that wait for each other
POLICY = Policy(job="gpt2", strategies=[("Ignore", None)], world_size=RANKS)
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


async def test_late_data_then_garbage_collections_and_the_ranks_go_on_unharmed(
    make_pod: MakePod, tmp_path: Path, python_dir: Path
) -> None:
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
    (tmp_path / "fault").write_text("garbage")

    def collects(summary: Summary) -> bool:
        fraction = summary.ranks[1].collecting_fraction or 0
        return fraction > 0.1 and any("make_garbage (stalling.py:" in frame for frame in first_place(summary))

    summary = await pod.reported("collections of rank 1", lambda each: sampled(each) and collects(each))
    rank = summary.ranks[1]
    assert (rank.healthy_collecting_fraction or 0.0) < 0.02
    assert cause_of(summary, rank.collecting_fraction or 0.0) is Cause.GARBAGE_COLLECTION
    status = pod.launcher.status()
    assert status is not None
    assert [rank.state for rank in status.ranks] == ["Running", "Running"]


# -- waits where no call is seen --------------------------------------------------------------------------------------


class Watched:
    """A recovery that looks at each report of the pod, as if each rank ran on a node of its own."""

    def __init__(self) -> None:
        self.state = RecoveryState()
        self._seen = 0

    def look(self, summary: Summary) -> bool:
        """Return whether a rank is named, or a change of the job."""
        if summary.sequence > self._seen and len(summary.ranks) == RANKS:
            self._seen = summary.sequence
            self.state = machine.step(self.state, Look(observation(summary), POLICY)).state
        leader = self.state.leader
        return (leader is not None and leader.culprit is not None) or self.state.levels.change is not None

    @property
    def culprit(self) -> Culprit | None:
        return self.state.leader.culprit if self.state.leader is not None else None


def observation(summary: Summary) -> Observation:
    return Observation(
        now=summary.unix_ns / 1e9,
        generation=1,
        running=True,
        running_seconds=100.0,
        members=[
            MemberSeen(
                replica=number,
                pod_name=f"gpt2-{number}",
                pod_uid=f"uid-{number}",
                node=f"node-{number}",
                pod="Present",
                alive=True,
                launcher=LauncherSeen(acknowledged=True),
            )
            for number in range(RANKS)
        ],
        ranks=[
            RankSeen(rank=sent.rank, replica=sent.rank, process="Running", sent=sent, fresh=True)
            for sent in summary.ranks
        ],
    )


async def slowed_at(make_pod: MakePod, folder: Path, python_dir: Path, place: str, fault: str) -> tuple[Pod, Watched]:
    """Return a pod whose ranks become slow in this way, once they have been healthy for a while."""
    (folder / "fault").write_text("")
    command = (str(PYTHON), str(WAITING), str(folder), place)
    pod, watched = make_pod(RANKS, *command, options=("--python", str(python_dir))), Watched()
    pod.start_agent(cpu_only=True)
    pod.allow(1_000_000)
    pod.plan(1, "Run")
    await pod.trained(200)
    await pod.reported("healthy ranks", lambda summary: not watched.look(summary) and settled(summary))
    (folder / "fault").write_text(fault)
    return pod, watched


def settled(summary: Summary) -> bool:
    return all(rank.healthy_compute_ns and rank.healthy_run_delay_fraction is not None for rank in summary.ranks)


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        pytest.param("store", "sleep", marks=pytest.mark.slow),  # unit real_jobs/test_unseen_waits
        ("lock", "compute"),
        pytest.param("store", "compute", marks=pytest.mark.slow),
        pytest.param("lock", "sleep", marks=pytest.mark.slow),
    ],
)
async def test_the_rank_that_does_not_wait_is_the_culprit(
    make_pod: MakePod, tmp_path: Path, python_dir: Path, place: str, fault: str
) -> None:
    pod, watched = await slowed_at(make_pod, tmp_path, python_dir, place, fault)
    await pod.reported("a culprit", watched.look)
    assert watched.culprit is not None, watched.state.levels.change
    assert watched.culprit.rank == 1
    assert watched.culprit.peers.unseen_ns > 0 or place == "lock"


@pytest.mark.slow  # 90 s of samples; unit/signals/job/test_unseen_waits has ranks that all wait
@pytest.mark.parametrize("place", ["store", "lock"])
async def test_ranks_that_all_sleep_have_a_wait_of_unknown_cause(
    make_pod: MakePod, tmp_path: Path, python_dir: Path, place: str
) -> None:
    pod, watched = await slowed_at(make_pod, tmp_path, python_dir, place, "all")
    await pod.reported("a common cause", watched.look)
    assert watched.culprit is None
    change = watched.state.levels.change
    assert change is not None
    assert change.outside is not None, msgspec.to_builtins(change)
    assert change.outside.cause == "UnseenWait"
