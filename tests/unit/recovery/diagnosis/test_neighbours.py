"""Who takes the cores that a slow rank waits for: said by its node, and kept with the cause."""

from __future__ import annotations

from falcon_core.model import Cause
from falcon_core.recovery.diagnosis.culprit_timing import with_newest_figures
from falcon_core.recovery.model.slowdown import Culprit
from falcon_core.signals.job.cause import CpuEvidence
from tests.unit.recovery.seen import NOW, POLICY, SLOW, STRAGGLER, locate, replace, seen, unnamed

WAITS = CpuEvidence(throttled=0.0, run_delay=0.6, healthy_run_delay=0.1)
STOPPED = CpuEvidence(throttled=0.7, healthy_throttled=0.0)
BUSY = "of 4.00 cores: batch/etl-5 2.90, train/gpt2-2 1.10"


def culprit(cpu: CpuEvidence, busy: str) -> Culprit:
    nodes = {2: {"busy": busy}, 1: {"busy": "of 4.00 cores: others 4.00"}}
    found = locate(seen(members=nodes, ranks={**STRAGGLER, 2: {**SLOW, "cpu": cpu}}), POLICY)
    assert found is not None
    return found


def test_the_culprits_own_node_says_who_takes_its_cores() -> None:
    found = culprit(WAITS, BUSY)
    assert (found.cause, found.neighbours) == (Cause.CPU_CONTENTION, BUSY)


def test_a_busy_node_explains_no_quota() -> None:
    found = culprit(STOPPED, BUSY)
    assert (found.cause, found.neighbours) == (Cause.CPU_THROTTLING, "")


def test_a_name_that_comes_later_is_taken_over_at_once_and_stays() -> None:
    slow = replace(unnamed(slow_ns=650_000_000), culprit=culprit(WAITS, ""), refreshed_at=NOW)
    slow = with_newest_figures(slow, culprit(WAITS, BUSY), NOW + 0.5)
    assert slow.culprit is not None
    assert slow.culprit.neighbours == BUSY
    slow = with_newest_figures(slow, culprit(WAITS, ""), NOW + 60)
    assert slow.culprit is not None
    assert slow.culprit.neighbours == BUSY, "the node is calm again, and the diagnosis says who it was"
