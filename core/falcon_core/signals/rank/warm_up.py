"""Load the parts of NumPy that a process's first search for a period needs.

NumPy loads much of itself at first use. An agent's first search falls into its job's first second, and the searches of
all its ranks fall together there.
"""

from __future__ import annotations

import numpy as np

from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import RECORD_DTYPE, DType, Kind, Op, RecordArray

_CYCLE = 20  # calls
_CYCLES = 12  # enough for a period, and before it for every kind of search
_CALL_NS = 10_000_000


def warm_up() -> None:
    """Feed a made-up rank's calls to a chain, and forget it: some ten milliseconds, most of them once a process."""
    numbers = np.arange(_CYCLE * _CYCLES)
    records: RecordArray = np.zeros(numbers.shape[0], dtype=RECORD_DTYPE)
    records["seq"] = numbers + 1
    records["t_start_ns"] = numbers * _CALL_NS
    records["duration_ns"] = _CALL_NS // 10
    records["comm"] = 1
    records["comm_seq"] = numbers
    records["op"] = Op.ALL_REDUCE
    records["dtype"] = DType.FLOAT32
    records["kind"] = Kind.BLOCKING
    records["bytes"] = 1024 * (1 + numbers % _CYCLE // 2 % 7)
    RankChain(Detection()).feed(records)
