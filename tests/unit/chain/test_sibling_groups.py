"""A group whose transfers were slow before its first iteration is suspected beside its kind, and links are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from falcon_core.wire.ring import Op
from falcon_operator.base.effects import OrderProbe
from tests.unit.chain.pods import Operator, agents
from tests.unit.signals.members import TRANSFER_NS, Job
from tests.unit.signals.streams import MS

WORLD, DATA = 3, 7
GROUPS = {WORLD: [range(4)], DATA: [(0, 1), (2, 3)]}
SPEC: dict[str, Any] = {
    "parallelism": {"pipeline": 2},
    "detection": {"pauseBudget": "50%"},
    "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "SwapNodes"}]},
}
LOOKS = 4  # apart by more iterations than a report holds


def train(job: Job, cycles: int, *, slow: float, late: float) -> None:
    """Run two data groups of two ranks: transfers of the first last ``slow`` times as long, rank 3 is always late."""
    for _ in range(cycles):
        job.compute(60 * MS, {3: late})
        for size in (1 << 20, 1 << 20, 1 << 12):
            job.meet(Op.ALL_REDUCE, size, GROUPS[DATA], DATA, lambda place: int(TRANSFER_NS * (1.0 if place else slow)))
            job.compute(2 * MS)
        job.meet(Op.ALL_REDUCE, 4, GROUPS[WORLD], WORLD)
        job.end_cycle()


def watched(folder: Path, *, slow: float, late: float = 1.0, sampled: int | None = None) -> Operator:
    """Return an operator that has looked while the job went on, and asked the ranks whom it wanted to know more of."""
    job, operator = Job(4, jitter=0.02, sampled=sampled), Operator(4, SPEC)
    for look in range(LOOKS):
        train(job, 320 if sampled and not look else 60, slow=slow, late=late)
        known = agents(folder / str(look), job, GROUPS)
        for _ in range(2):  # the ranks are asked at the first
            operator.look([each.signals(0.05, asked=each.rank in operator.asked) for each in known])
    return operator


@pytest.mark.parametrize("sampled", [None, 5], ids=["blocking", "on a device"])
def test_links_are_measured_for_a_group_that_is_slower_than_its_kind(tmp_path: Path, sampled: int | None) -> None:
    operator = watched(tmp_path, slow=6.0, sampled=sampled)
    slow = operator.intent.recovery.leader
    assert slow is not None
    assert slow.link is not None
    assert slow.link.comm == "data group of rank 0"
    assert slow.link.excess_ns == pytest.approx(3 * 5 * TRANSFER_NS, rel=0.1)
    assert operator.status.diagnoses == [], "a suspicion is not shown"
    assert [effect.order.phase for effect in operator.effects if isinstance(effect, OrderProbe)] == ["Prepare"]


@pytest.mark.parametrize(("slow", "late"), [(1.0, 1.0), (1.0, 1.3), (1.4, 1.0)], ids=["well", "a late rank", "hardly"])
def test_a_rank_that_others_wait_for_makes_no_group_slow(tmp_path: Path, slow: float, late: float) -> None:
    operator = watched(tmp_path, slow=slow, late=late)
    compared = operator.intent.recovery.suspicions.compared
    assert compared is not None
    assert (compared.over, compared.reports) == (True, 0)
    assert all(slow is None or slow.link is None for slow in [operator.intent.recovery.leader])
