"""Micro-batches that move between real ranks: the operator's order, the script's word, the agent's figures."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from falcon_core.wire.reporting.messages import RankSignals, Summary
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PROGRAMS, PYTHON, Pod

EVEN, MOVED = [4, 4, 4], [5, 2, 5]
pytestmark = [pytest.mark.timeout(400), pytest.mark.alone]  # ratios of times


@pytest.fixture
def pod(make_pod: MakePod, python_dir: Path, request: pytest.FixtureRequest) -> Pod:
    """Return a pod of three ranks whose micro-batches can move, with its agent."""
    slow_down(python_dir.parent, 1.0)
    more = getattr(request, "param", ())
    program = (str(PYTHON), str(PROGRAMS / "micro_batches.py"), str(python_dir.parent), *more)
    made = make_pod(3, *program, options=("--python", str(python_dir)))
    made.start_agent()
    made.plan(1, "Run")
    return made


def slow_down(folder: Path, factor: float) -> None:
    fresh = folder / "slow.new"
    fresh.write_text(str(factor))
    fresh.rename(folder / "slow")


def shares(summary: Summary) -> list[int]:
    return [rank.micro.share for rank in summary.ranks if rank.micro is not None]


def compute_ms(rank: RankSignals) -> float:
    return statistics.median(rank.compute_ns[-8:]) / 1e6 if rank.compute_ns else 0.0


def iteration_ms(summary: Summary) -> float:
    return statistics.median(statistics.median(rank.iteration_ns[-8:]) for rank in summary.ranks) / 1e6


def in_step(pod: Pod) -> list[int]:
    """Return how many micro-batches each rank computed in the newest step that all have done."""
    lines = [(pod.folder / f"own-{rank}").read_text().split() for rank in range(pod.procs)]
    newest = min(map(len, lines))
    return [int(of_rank[newest - 1]) for of_rank in lines]


def near(rank: RankSignals, slowdown: float) -> bool:
    known = rank.healthy_compute_ns
    return known is not None and abs(compute_ms(rank) / (known / 1e6) / slowdown - 1) < 0.1


async def settled(
    pod: Pod, what: str, wanted: list[int], slowdown: float | None = None, iterations: int = 25
) -> Summary:
    """Return a report in which these shares have held for so many iterations.

    ``slowdown``: also wait until rank 1 is so slow, by its agent's figures. Ranks say their shares at a step's start:
    ``in_step`` shows them once that step is done.
    """
    begun = 0

    def holds(summary: Summary) -> bool:
        nonlocal begun
        if shares(summary) != wanted:
            return False
        done = min(rank.iterations for rank in summary.ranks)
        begun = begun or done
        return done >= begun + iterations and (slowdown is None or near(summary.ranks[1], slowdown))

    return await pod.reported(what, holds)


@pytest.mark.slow  # e2e/campaigns/test_layout_campaign moves them on the cluster, and judges what the agents report
async def test_shares_move_and_the_slow_rank_still_shows_its_own_speed(pod: Pod) -> None:
    await settled(pod, "a healthy job", EVEN, 1.0)
    slow_down(pod.folder, 2.0)
    before = await settled(pod, "a slow rank", EVEN, 2.0)
    pod.order(MOVED)
    after = await settled(pod, "as slow a rank, with half of its micro-batches", MOVED, 2.0)
    assert in_step(pod) == MOVED
    assert iteration_ms(after) < 0.8 * iteration_ms(before)
    slow = after.ranks[1]
    assert slow.wait_ns
    assert compute_ms(slow) > iteration_ms(after), "what the even share would take"
    helper = after.ranks[0]
    assert helper.healthy_compute_ns is not None
    assert abs(compute_ms(helper) / (helper.healthy_compute_ns / 1e6) - 1) < 0.1, "whoever helps is not slow"

    assert pod.agent is not None
    pod.agent.kill()
    pod.agent.wait()
    pod.start_agent()
    await settled(pod, "the same figures of another agent", MOVED, 2.0)

    slow_down(pod.folder, 1.0)
    await settled(pod, "a rank that is well again, by its own speed", MOVED, 1.0)
    pod.order(EVEN)
    await settled(pod, "the even split", EVEN, 1.0)
    assert in_step(pod) == EVEN


@pytest.mark.slow  # microbatches/test_sharing shares them out between ranks with sharded parameters
@pytest.mark.parametrize("pod", [("sharded",)], indirect=True)
async def test_they_move_between_ranks_that_share_the_parameters(pod: Pod) -> None:
    """The model is in shards that are gathered once a step: an iteration's calls stay, whatever a rank's share is."""
    even = await settled(pod, "a healthy job", EVEN, 1.0)
    slow_down(pod.folder, 2.0)
    before = await settled(pod, "a slow rank", EVEN, 2.0)
    pod.order(MOVED)
    after = await settled(pod, "the moved micro-batches", MOVED, iterations=16)
    assert in_step(pod) == MOVED
    assert [rank.period_calls for rank in after.ranks] == [rank.period_calls for rank in even.ranks]
    assert iteration_ms(after) < 0.8 * iteration_ms(before)
    assert compute_ms(after.ranks[1]) > 1.5 * compute_ms(even.ranks[1]), "the slow rank still shows its own speed"
    pod.order(EVEN)
    await settled(pod, "the even split", EVEN, iterations=3)
    assert in_step(pod) == EVEN


@pytest.mark.slow  # e2e and unit tests restart processes, too
async def test_a_restart_begins_with_the_even_split(pod: Pod) -> None:
    await settled(pod, "a healthy job", EVEN, 1.0)
    pod.order(MOVED)
    await pod.reported("moved shares", lambda summary: shares(summary) == MOVED)
    pod.plan(2, "Run")
    again = await pod.reported(
        "the next generation's shares",
        lambda s: s.generation == 2 and len(shares(s)) == 3 and s.ranks[0].iterations > 9,
    )
    assert shares(again) == EVEN
    assert in_step(pod) == EVEN
