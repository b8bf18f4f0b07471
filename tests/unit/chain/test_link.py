"""A slow link is named only where transfers last longer at every member and no rank computes slower."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from falcon_core.wire.reporting.messages import ThrottleSignals
from falcon_core.wire.ring import Op
from tests.unit.chain.pods import Operator, agents
from tests.unit.signals.members import TRANSFER_NS, Job, data_parallel
from tests.unit.signals.streams import MS

COMM = 7
replace = msgspec.structs.replace


def episode(job: Job, cycles: int, *, transfer: float = 1.0, compute: Mapping[int, float] | None = None) -> None:
    """Run the cycles of ``data_parallel`` with slower transfers or slower ranks."""
    for _ in range(cycles):
        job.compute(100 * MS, compute)
        for size in (1 << 20, 1 << 20, 1 << 12):
            job.meet(Op.ALL_REDUCE, size, [range(job.ranks)], COMM, lambda _: int(TRANSFER_NS * transfer))
            job.compute(2 * MS)
        job.meet(Op.ALL_REDUCE, 4, [range(job.ranks)], COMM, lambda _: int(TRANSFER_NS * transfer))
        job.end_cycle()


def watched(tmp_path: Path, job: Job) -> Operator:
    """Return an operator that has looked five times at the end of the job."""
    operator = Operator(job.ranks, healthy_ns=114 * MS)
    reports = [agent.signals(0.05) for agent in agents(tmp_path, job, {COMM: [range(job.ranks)]})]
    for _ in range(5):
        operator.look(reports)
    return operator


def test_a_slow_link_is_named_with_its_ends_and_the_evidence(tmp_path: Path) -> None:
    job = Job(3, jitter=0.02)
    data_parallel(job, 80)
    episode(job, 40, transfer=6)
    operator = watched(tmp_path, job)
    (note,) = operator.status.diagnoses
    assert (note.what, note.cause, note.state, note.rank) == ("fail-slow, communication", "SlowLink", "Open", None)
    assert note.where == "a link between " + ", ".join(
        f"rank {rank} (pod gpt2-{rank}, node node-{rank})" for rank in range(3)
    )
    assert "all-reduce takes longer, in the communicator of all 3 ranks" in note.why
    assert "transfers last 0.04 s longer than in a healthy iteration" in note.evidence
    assert note.next.startswith("the links are measured while training is paused, from "), "the budget is not there yet"
    assert operator.status.state == "Degraded"
    assert "a link between ranks 0, 1, 2 (node-0, node-1, node-2) is slow" in operator.status.summary
    assert [(event.type, event.reason) for event in operator.events] == [("Warning", "SlowLink")]
    assert next(entry.reason for entry in operator.status.conditions if entry.type == "Degraded") == "SlowLink"


def test_relief_closes_the_slow_link(tmp_path: Path) -> None:
    job = Job(3, jitter=0.02)
    data_parallel(job, 80)
    episode(job, 40, transfer=6)
    operator = watched(tmp_path / "slow", job)
    slowdown = operator.status.diagnoses[0].slowdown
    episode(job, 60)
    operator.look([agent.signals(0.05) for agent in agents(tmp_path / "well", job, {COMM: [range(3)]})])
    (note,) = operator.status.diagnoses
    assert note.state == "Resolved"
    assert "the slowdown ended by itself" in note.result
    assert note.slowdown == slowdown != "iterations take 1.0x the healthy time"
    assert operator.status.state == "Running"


def test_a_straggler_is_still_named_as_a_rank(tmp_path: Path) -> None:
    job = Job(3, jitter=0.02)
    data_parallel(job, 80)
    episode(job, 40, compute={1: 1.7}, transfer=1.5)
    (note,) = watched(tmp_path, job).status.diagnoses
    assert (note.rank, note.what) == (1, "fail-slow, computation")


@pytest.mark.parametrize(
    ("transfer", "compute"),
    [(1.0, {}), (6.0, {0: 1.3, 1: 1.3, 2: 1.3}), (6.0, {2: 1.15}), (1.5, {})],
    ids=["healthy", "everything slower alike", "a rank computes slower as well", "less than a tenth"],
)
@pytest.mark.parametrize("jitter", [0.02, 0.1])
def test_no_link_is_named_where_it_is_not_the_links_fault(
    tmp_path: Path, transfer: float, compute: dict[int, float], jitter: float
) -> None:
    job = Job(3, jitter=jitter)
    data_parallel(job, 80)
    episode(job, 40, transfer=transfer, compute=compute)
    assert [note.cause for note in watched(tmp_path, job).status.diagnoses if note.cause == "SlowLink"] == []


@pytest.mark.parametrize("compute", [{}, {0: 1.5, 1: 1.4, 2: 1.5}, {1: 1.3}], ids=["calm", "a busy machine", "a rank"])
def test_a_link_is_named_though_computation_is_slower_as_well(tmp_path: Path, compute: dict[int, float]) -> None:
    """Check transfers that became slower by many times as much as computation."""
    job = Job(3, jitter=0.02)
    data_parallel(job, 80)
    episode(job, 40, transfer=30, compute=compute)
    (note,) = watched(tmp_path, job).status.diagnoses
    assert note.cause == "SlowLink"
    assert ("though also slower, does not explain it" in note.why) == bool(compute)


def test_no_link_is_named_while_cpus_are_wanting(tmp_path: Path) -> None:
    job = Job(3, jitter=0.02)
    data_parallel(job, 80)
    episode(job, 40, transfer=6)
    for run_delay, named in ((0.4, 0), (0.06, 1)):
        operator = Operator(3, healthy_ns=114 * MS)
        reports = [
            replace(agent.signals(0.05), run_delay_fraction=run_delay, healthy_run_delay_fraction=0.05)
            for agent in agents(tmp_path / str(run_delay), job, {COMM: [range(3)]})
        ]
        throttle = ThrottleSignals(window_seconds=5.0, throttled_fraction=0.0, healthy_throttled_fraction=0.0)
        for _ in range(5):
            operator.look(reports, throttle)
        assert len(operator.status.diagnoses) == named


def test_a_slowness_that_has_not_lasted_names_no_link(tmp_path: Path) -> None:
    job = Job(3, jitter=0.02)
    data_parallel(job, 80)
    episode(job, 12, transfer=6)
    assert watched(tmp_path, job).status.diagnoses == []


def test_between_two_ranks_both_ends_are_named(tmp_path: Path) -> None:
    """Check groups of two and of three ranks, where the transfers of one pair last longer.

    The other ranks wait for that pair, and none of them is named.
    """
    job = Job(6, jitter=0.02)
    pairs, threes = [(0, 1), (2, 3), (4, 5)], [(0, 2, 4), (1, 3, 5)]
    for cycle in range(120):
        job.compute(80 * MS)
        job.meet(Op.ALL_REDUCE, 1 << 16, pairs, 1, lambda at, slow=cycle >= 80: 42 * MS if slow and at == 1 else 2 * MS)
        job.compute(10 * MS)
        job.meet(Op.ALL_REDUCE, 1 << 20, threes, 2)
        job.end_cycle()
    operator = Operator(6, {"parallelism": {"tensor": 2}}, healthy_ns=94 * MS)
    reports = [agent.signals(0.05) for agent in agents(tmp_path, job, {1: pairs, 2: threes})]
    for _ in range(5):
        operator.look(reports)
    (note,) = operator.status.diagnoses
    assert note.where == "the link between rank 2 (pod gpt2-2, node node-2), rank 3 (pod gpt2-3, node node-3)"
    assert "tensor group of rank 2" in note.why
