"""Cases of several ranks from which rules were written: the right rank, in each order of reports."""

from __future__ import annotations

import pytest

from evaluation.errors.cases import LEAVE, ORDERS, PART_ONE, Case, played, read_cases

# All ranks print the error that rank 2 had while it read a checkpoint, and no rank is named.
KNOWN_WRONG = {"third-checkpoint-exception-copied"}


@pytest.mark.parametrize("case", read_cases(PART_ONE), ids=lambda case: case.id)
def test_the_right_rank_and_a_bad_node_left_in_each_order_of_reports(case: Case) -> None:
    # The evaluation draws the clocks ten times in each order; here each case is judged once in each order.
    outcomes = played([case], trials=1)
    assert {outcome.order for outcome in outcomes} == set(ORDERS)
    wrong = [outcome for outcome in outcomes if not outcome.right_rank]
    assert (wrong == []) is (case.id not in KNOWN_WRONG)
    # Whether a program's error ends the job is no matter of one failure: it depends on how often it has come back.
    assert {outcome.step == LEAVE for outcome in outcomes} == {case.step == LEAVE}
