"""Distinct calls are named in the order in which they appear, however the records are split."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.signals.calls.stream import Tokenizer
from falcon_core.wire.ring import POINT_TO_POINT, RECORD_DTYPE, RecordArray


def _records(kinds: int, count: int, seed: int) -> RecordArray:
    rng = np.random.default_rng(seed)
    records = np.zeros(count, dtype=RECORD_DTYPE)
    records["op"] = rng.integers(12, size=count)
    records["dtype"] = rng.integers(3, size=count)
    records["comm"] = rng.choice(np.array([1, 2, POINT_TO_POINT | 1, (1 << 64) - 1], dtype=np.uint64), count)
    records["bytes"] = rng.integers(kinds, size=count).astype(np.uint64) << np.uint64(40)
    return records


@pytest.mark.parametrize("kinds", [1, 3, 1000], ids=["few", "some", "hardly any twice"])
def test_each_distinct_call_has_one_name_whatever_the_batches(kinds: int) -> None:
    records = _records(kinds, 3000, seed=kinds)
    names: dict[tuple[int, ...], int] = {}
    columns = [records[name].tolist() for name in ("op", "comm", "dtype", "bytes")]
    named = [names.setdefault(key, len(names)) for key in zip(*columns, strict=True)]
    for cuts in ([], range(1, 3000), range(0, 3000, 500), [5, 400, 410, 1500, 1501]):
        tokenizer = Tokenizer()
        tokens = [tokenizer.calls(piece).tokens for piece in np.split(records, cuts)]
        assert np.concatenate(tokens).tolist() == named
        assert tokenizer.comms.astype(np.uint64).tolist() == [comm for _, comm, _, _ in names]


def test_calls_that_look_alike_to_the_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "falcon_core.signals.calls.stream._hashes", lambda columns: np.zeros(len(columns[0]), dtype=np.uint64)
    )
    tokenizer, records = Tokenizer(), _records(2, 500, seed=1)
    first, second = (tokenizer.calls(records).tokens.tolist() for _ in range(2))
    assert first == second
    distinct = {
        tuple(row) for row in zip(*(records[name].tolist() for name in ("op", "comm", "dtype", "bytes")), strict=True)
    }
    assert len(set(first)) == len(distinct)
