"""What a micro-batch takes shows in a pipeline's sends and receives, whatever the stage and the schedule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection, RankSignals
from falcon_core.wire.reporting.microbatches import MicrobatchReport, MicroShare, Turn
from falcon_core.wire.ring import Op
from tests.unit.signals.streams import MS, Call, Script

PER_RANK = 4
FORWARD, BACKWARD, FIXED = 10 * MS, 20 * MS, 50 * MS
MICRO = FORWARD + BACKWARD
TENSOR, DATA = 8, 9  # communicators


class Stage:
    """A rank of a pipeline under 1F1B: loading, passes with calls of a tensor group, gradients, the optimizer."""

    def __init__(self, number: int, stages: int, *, chunks: int = 1) -> None:
        self.script, self.chain = Script(), RankChain(Detection())
        self._number, self._stages, self._chunks = number, stages, chunks
        self._turns: list[Turn] = []
        self._fed = 0

    def step(self, times: int, share: int = PER_RANK, slowdown: float = 1.0) -> RankSignals:
        if not self._turns or self._turns[-1].share != share:
            self._turns.append(Turn(self.script.now_ns, share, even=share == PER_RANK))
        for _ in range(times):
            before_ns = FIXED
            for part, chunk in self._order(share):
                before_ns = self._pass(part, chunk, before_ns, slowdown)
            self.script.call(Call(Op.ALL_REDUCE, 8192, round(before_ns * slowdown), comm=DATA))
        self.chain.shares.said = MicrobatchReport(generation=1, per_rank=PER_RANK, turns=list(self._turns), timed=False)
        self.chain.feed(self.script.records[self._fed :])
        self._fed = len(self.script.records)
        return self.chain.signals(0, 0)

    def _pass(self, part: str, chunk: int, before_ns: int, slowdown: float) -> int:
        """Receive, compute, and send, where the pass does; return what is computed since the newest call [ns]."""
        last = self._chunks * self._stages - 1
        at = chunk * self._stages + self._number
        begins, ends = (0, last) if part == "F" else (last, 0)
        if at != begins:
            self.script.call(Call(Op.RECV, 1024, round(before_ns * slowdown), 5 * MS))
            before_ns = 0
        own_ns = (FORWARD if part == "F" else BACKWARD) // self._chunks
        self.script.call(Call(Op.ALL_REDUCE, 512, round((before_ns + own_ns // 2) * slowdown), comm=TENSOR))
        before_ns = own_ns // 2
        if at != ends:
            self.script.call(Call(Op.SEND, 1024, round(before_ns * slowdown)))
            before_ns = 0
        return before_ns

    def _order(self, share: int) -> Iterator[tuple[str, int]]:
        if self._chunks > 1:  # all forward passes, chunk by chunk, then all backward
            yield from (("F", chunk) for chunk in range(self._chunks) for _ in range(share))
            yield from (("B", chunk) for chunk in reversed(range(self._chunks)) for _ in range(share))
            return
        warm = min(self._stages - self._number - 1, share)
        yield from (("F", 0) for _ in range(warm))
        for _ in range(share - warm):
            yield from (("F", 0), ("B", 0))
        yield from (("B", 0) for _ in range(warm))


STAGES = [(0, 2, 1), (1, 2, 1), (0, 4, 1), (1, 4, 1), (3, 4, 1), (0, 2, 2), (1, 2, 2)]


@pytest.mark.parametrize(("number", "stages", "chunks"), STAGES)
def test_it_is_what_both_passes_compute(number: int, stages: int, chunks: int) -> None:
    signals = Stage(number, stages, chunks=chunks).step(40)
    assert signals.micro is not None
    assert signals.micro == MicroShare(per_rank=PER_RANK, share=PER_RANK, micro_ns=signals.micro.micro_ns, timed=True)
    assert signals.micro.micro_ns == pytest.approx(MICRO, rel=1e-3)
    assert signals.compute_ns[-1] == PER_RANK * MICRO + FIXED


@pytest.mark.parametrize("share", [3, 7])
@pytest.mark.parametrize(("number", "stages", "chunks"), STAGES)
def test_another_share_is_told_from_what_is_fixed(number: int, stages: int, chunks: int, share: int) -> None:
    """By the ratio of shares, the fixed 50 ms of 170 would look like three and a half times as much, or half."""
    stage = Stage(number, stages, chunks=chunks)
    stage.step(60)
    stage.step(20, slowdown=2.0)
    moved = stage.step(20, share=share, slowdown=2.0)
    assert moved.micro is not None
    assert (moved.micro.share, moved.micro.micro_ns) == (share, pytest.approx(2 * MICRO, rel=1e-3))
    assert moved.compute_ns[-1] == pytest.approx(2 * (PER_RANK * MICRO + FIXED), rel=1e-3)
    relieved = stage.step(10, share=share)
    assert relieved.compute_ns[-1] == pytest.approx(PER_RANK * MICRO + FIXED, rel=1e-3)


@pytest.mark.parametrize(
    "calls",
    [
        [Call(Op.ALL_REDUCE, 4096, 30 * MS), Call(Op.ALL_REDUCE, 8192, 5 * MS)],
        [*(Call(Op.RECV, 1024, MS), Call(Op.SEND, 1024, 10 * MS)) * 3, Call(Op.ALL_REDUCE, 8192, MS)],
        [*(Call(Op.RECV, 1024, 0), Call(Op.SEND, 1024, 0)) * PER_RANK, Call(Op.ALL_REDUCE, 8192, MS)],
    ],
    ids=["no pipeline", "other numbers than the share's", "it computes nothing"],
)
def test_where_it_does_not_show_nothing_is_said(calls: list[Call]) -> None:
    script, chain = Script(), RankChain(Detection())
    script.cycle(calls, 300)
    chain.shares.said = MicrobatchReport(
        generation=1, per_rank=PER_RANK, turns=[Turn(0, PER_RANK, even=True)], timed=False
    )
    chain.feed(script.records)
    signals = chain.signals(0, 0)
    assert signals.tracking == "Tracking"
    assert signals.micro == MicroShare(per_rank=PER_RANK, share=PER_RANK, timed=False)


def test_a_script_that_times_its_passes_is_believed() -> None:
    stage = Stage(1, 2)
    stage.step(40)
    said = MicrobatchReport(generation=1, per_rank=PER_RANK, turns=[Turn(0, PER_RANK, even=True)], micro_ns=7 * MS)
    stage.chain.shares.said = said
    micro = stage.chain.signals(0, 0).micro
    assert micro is not None
    assert (micro.micro_ns, micro.timed) == (7 * MS, True)
