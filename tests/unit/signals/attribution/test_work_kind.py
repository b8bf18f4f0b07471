"""What a rank's calls show of its work: the same in each iteration, in its bytes, or hidden."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.signals.attribution.work_kind import Peers
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection, Work
from falcon_core.wire.ring import Op, RecordArray
from tests.unit.signals.streams import MS, Call, Script, ddp, pipeline

EXPERTS = 9


def shown(records: RecordArray, batch: int = 97) -> Work:
    chain = RankChain(Detection())
    for at in range(0, len(records), batch):
        chain.feed(records[at : at + batch])
    assert chain.iterations > 20
    return chain.signals(0, 0).work


def experts(script: Script, tokens: int, *, bytes_of: int, counts: bool = True) -> None:
    """Run an iteration with experts: a few counts are exchanged, then tokens there and back."""
    for _ in range(2):
        if counts:
            script.call(Call(Op.ALL_TO_ALL, 64, 5 * MS, comm=EXPERTS))
        script.call(Call(Op.ALL_TO_ALL, bytes_of, 1 * MS, comm=EXPERTS))
        script.call(Call(Op.ALL_TO_ALL, bytes_of, int(tokens * 0.05 * MS), comm=EXPERTS))
    script.cycle(ddp(2, 20 * MS))


def test_constant_calls_show_constant_work() -> None:
    for cycle in (ddp(4), pipeline(8)):
        script = Script(jitter=0.02)
        script.cycle(cycle, 60)
        assert shown(script.records) == "Fixed"


def test_padded_experts_hide_their_work() -> None:
    script = Script(jitter=0.02)
    for _ in range(80):
        experts(script, int(script.rng.integers(500, 1500)), bytes_of=1 << 20)
    assert shown(script.records) == "Hidden"


def test_experts_without_a_capacity_show_their_work_in_bytes() -> None:
    script = Script(jitter=0.02)
    for _ in range(150):
        tokens = int(script.rng.integers(500, 1500))
        experts(script, tokens, bytes_of=tokens * 4096)
    assert shown(script.records) == "InBytes"


def test_sizes_that_have_nothing_to_do_with_the_time_hide_the_work() -> None:
    script = Script(jitter=0.02)
    for _ in range(150):
        experts(script, 1000, bytes_of=int(script.rng.integers(500, 1500)) * 4096)
    assert shown(script.records) == "Hidden"


def test_padded_experts_beside_sizes_that_vary_hide_their_work() -> None:
    script = Script(jitter=0.02)
    for _ in range(150):
        tokens = int(script.rng.integers(500, 1500))
        experts(script, 100, bytes_of=1 << 20, counts=False)
        script.call(Call(Op.ALL_REDUCE, tokens * 4096, int(tokens * 0.1 * MS), comm=3))
    assert shown(script.records) == "Hidden"


@pytest.mark.parametrize(("peers", "work"), [(2, "Fixed"), (3, "Hidden"), (7, "Hidden")])
def test_an_all_to_all_that_is_made_of_sends_is_one(peers: int, work: Work) -> None:
    layers = 3
    exchange = [Call(op, 1 << 16, 1 * MS, comm=EXPERTS) for _ in range(layers * peers) for op in (Op.SEND, Op.RECV)]
    script = Script(jitter=0.02)
    script.cycle([*exchange, *ddp(3, 40 * MS)], 60)
    records = script.records
    sends = np.flatnonzero(records["op"] == Op.SEND)
    records["peer_or_root"][sends] = np.arange(len(sends)) % peers
    assert shown(records) == work


def test_what_a_job_sends_at_its_start_is_forgotten() -> None:
    script = Script()
    for _ in range(5):
        script.call(Call(Op.SEND, 1 << 10, MS))
    script.cycle(pipeline(8), 1200)
    records = script.records
    sends = np.flatnonzero(records["op"] == Op.SEND)
    records["peer_or_root"][sends] = 1
    records["peer_or_root"][sends[:5]] = np.arange(5)
    for batch in (1, 1000):
        peers = Peers()
        before = []
        for at in range(0, len(records), batch):
            peers.feed(records[at : at + batch])
            before.append(peers.many)
        assert before[4 // batch]
        assert not peers.many
