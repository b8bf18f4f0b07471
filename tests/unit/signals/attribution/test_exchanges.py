"""Mixture of experts over NCCL: exchanges whose sizes change with every batch, each one record of the shim.

Records as shim/src/shim/nccl/groups.cc writes them; shim/tests/nccl/nccl_exchange_test.cc shows that it does.
"""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.signals.calls.iteration_counts import iteration_counts
from falcon_core.signals.calls.stream import Tokenizer
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import COUNTER_DTYPE, EXCHANGE, RECORD_DTYPE, Kind, Op, RecordArray

BUCKETS = 10
WORLD, EXPERTS = 1, 2


def training(layers: int, iterations: int, *, vary: bool) -> RecordArray:
    """Make the records of a rank: forward and backward two exchanges a layer, then the gradients, 1 ms apart."""
    rng = np.random.default_rng(layers)
    exchanges = np.zeros(4 * layers, dtype=RECORD_DTYPE)
    exchanges["op"], exchanges["comm"], exchanges["peer_or_root"] = Op.ALL_TO_ALL, EXPERTS | EXCHANGE, 8
    gradients = np.zeros(BUCKETS + 1, dtype=RECORD_DTYPE)
    gradients["op"], gradients["comm"], gradients["peer_or_root"] = Op.REDUCE_SCATTER, WORLD, -1
    gradients["bytes"] = np.arange(BUCKETS + 1)[::-1] << 20
    gradients["bytes"][-1], gradients["op"][-1] = 4, Op.ALL_REDUCE
    records = np.tile(np.concatenate((exchanges, gradients)), iterations)
    spread = records["op"] == Op.ALL_TO_ALL
    records["bytes"][spread] = rng.integers(1, 1 << 24, spread.sum()) if vary else 1 << 22
    for comm in (WORLD, EXPERTS | EXCHANGE):
        mine = records["comm"] == comm
        records["comm_seq"][mine] = np.arange(mine.sum())
    records["seq"] = np.arange(len(records)) + 1
    records["t_start_ns"] = 1_000_000 * (np.arange(len(records), dtype=np.uint64) + 1000)
    records["kind"], records["dtype"] = Kind.ENQUEUED, 8
    return records


@pytest.mark.parametrize("vary", [False, True], ids=["equal parts", "parts that depend on the data"])
@pytest.mark.parametrize("layers", [4, 192], ids=["8 experts", "64 experts: 98 304 transfers an iteration"])
def test_the_iteration_is_found_whatever_is_exchanged(layers: int, vary: bool) -> None:
    records = training(layers, 12 if layers > 100 else 100, vary=vary)
    chain = RankChain(Detection())
    for piece in np.array_split(records, 40):
        chain.feed(piece)
    assert chain.period_calls == 4 * layers + BUCKETS + 1
    assert chain.iterations >= 4


def test_an_exchange_has_no_size_in_its_name_and_its_communicators_own_id() -> None:
    records = training(2, 3, vary=True)
    tokenizer = Tokenizer()
    for piece in np.split(records, [5, 30]):
        calls = tokenizer.calls(piece)
        assert calls.sizes.tolist() == piece["bytes"].tolist(), "the work of an iteration is known by them"
    assert len(tokenizer) == 1 + BUCKETS + 1
    assert set(tokenizer.comms.tolist()) == {WORLD, EXPERTS}


def test_exchanges_make_no_counts_at_an_iterations_start() -> None:
    records = training(2, 2, vary=True)
    assert iteration_counts(records, np.zeros(0, dtype=COUNTER_DTYPE)) is None
    gradients = records[records["comm"] == WORLD]
    assert iteration_counts(gradients, np.zeros(0, dtype=COUNTER_DTYPE)) is not None
