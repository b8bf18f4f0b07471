"""What is said to be next where a slow rank's machine is to be measured."""

from __future__ import annotations

import pytest

from falcon_core.model import Evidence
from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Pauses
from falcon_core.recovery.model.state import RecoveryState
from falcon_operator.status.text.probes import probe_next
from tests.unit.recovery.incidents import located

POLICY = Policy(job="gpt2", strategies=[("SwapNodes", 1.0), ("ReplaceNode", 1.0)], world_size=3, pause_budget=0.01)
DOUBTED = located(evidence=Evidence.WORK_MAY_MOVE)
STATE = RecoveryState(slowdowns=[DOUBTED], pauses=Pauses(since=1.0))


@pytest.mark.parametrize(
    ("strategy", "seconds", "words"),
    [
        ("ReplaceNode", 1.0, "before its node is replaced, its machine is measured against its peers' "),
        ("SwapNodes", 1.0, "before its pod takes another role, its machine is measured against its peers' "),
        ("AdjustMicrobatches", 1.0, ""),  # takes no node
        ("SwapNodes", 99.0, ""),  # is not due
    ],
)
def test_a_machine_is_measured_before_its_pod_loses_its_role(strategy: str, seconds: float, words: str) -> None:
    found = probe_next(STATE, DOUBTED, POLICY, 3, Candidate(name=strategy, overhead_seconds=seconds))
    assert found.startswith(words)
    assert bool(found) == bool(words)
