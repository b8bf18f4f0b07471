"""The order of a rank's calls, restored from their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.signals.calls.stream import REORDER_CALLS, CallOrder
from falcon_core.wire.ring import POINT_TO_POINT, RECORD_DTYPE, Kind, RecordArray

PAIRS = 1 | POINT_TO_POINT


def _records(numbers: list[int], *, described: bool) -> RecordArray:
    records: RecordArray = np.zeros(len(numbers) + described, dtype=RECORD_DTYPE)
    records["comm"], records["kind"] = PAIRS, Kind.BLOCKING
    records["comm_seq"][int(described) :] = numbers
    if described:
        records["kind"][0] = Kind.DESCRIPTOR
    return records


@pytest.mark.parametrize("batch", [1, 2, 100])
@pytest.mark.parametrize(
    ("numbers", "described", "order"),
    [
        ([2, 0, 1, 3], True, [0, 1, 2, 3]),  # sends 0 and 1 were waited for after the receive that was begun third
        ([2, 3, 4], False, [2, 3, 4]),
        ([REORDER_CALLS + 1, REORDER_CALLS + 2], True, [REORDER_CALLS + 1, REORDER_CALLS + 2]),  # not recorded before
    ],
    ids=["from the first", "from the middle", "switched on later"],
)
def test_point_to_point_calls_come_in_the_order_in_which_they_were_begun(
    batch: int, numbers: list[int], described: bool, order: list[int]
) -> None:
    records, arranger = _records(numbers, described=described), CallOrder()
    pieces = [arranger.arrange(records[at : at + batch]) for at in range(0, len(records), batch)]
    assert np.concatenate(pieces)["comm_seq"].tolist() == order


def test_after_a_loss_the_first_number_is_the_number_that_comes() -> None:
    arranger = CallOrder()
    arranger.arrange(_records([0], described=True))
    arranger.release()
    assert arranger.arrange(_records([5, 6], described=False))["comm_seq"].tolist() == [5, 6]
