"""What a rank computes is compared as with the even share, whatever share of the micro-batches it has."""

from __future__ import annotations

import pytest

from falcon_core.signals.attribution.even_share_compute import Shares
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection, RankSignals
from falcon_core.wire.reporting.microbatches import (
    MAX_MICRO_NS,
    MAX_PER_RANK,
    MAX_SHARES,
    MicrobatchReport,
    MicroShare,
    Turn,
)
from falcon_core.wire.ring import Op
from tests.unit.signals.streams import MS, Call, Script

PER_RANK, MICRO, FIXED = 4, 40 * MS, 20 * MS


class Rank:
    """A rank that makes two calls a step, in its last micro-batch and behind it."""

    def __init__(self, **said: bool) -> None:
        self._words = said
        self.script = Script()
        self.chain = RankChain(Detection())
        self._fed = 0
        self._turns: list[Turn] = []

    def step(self, times: int, share: int = PER_RANK, micro: int = MICRO, wait: int = 0) -> RankSignals:
        """Train so many steps with a share, of which the script tells as its first step begins."""
        if not self._turns or self._turns[-1].share != share:
            self._turns.append(Turn(self.script.now_ns, share, even=share == PER_RANK))
        for _ in range(times):
            self.script.call(Call(Op.ALL_REDUCE, 4096, share * micro, 2 * MS + wait))
            self.script.call(Call(Op.ALL_REDUCE, 4, FIXED))
        micro_ns = micro if self._words.get("timed", True) else None
        turns = list(self._turns)
        self.chain.shares.said = MicrobatchReport(
            generation=1, per_rank=PER_RANK, turns=turns, micro_ns=micro_ns, **self._words
        )
        self.chain.feed(self.script.records[self._fed :])
        self._fed = len(self.script.records)
        return self.chain.signals(0, 0)


def test_fewer_and_more_micro_batches_look_like_the_even_share() -> None:
    rank = Rank()
    even = PER_RANK * MICRO + FIXED
    assert set(rank.step(40).compute_ns) == {even}
    assert set(rank.step(8, share=2).compute_ns) == {even}, "also in the step of the change"
    assert set(rank.step(8, share=5).compute_ns) == {even}


def test_a_slow_rank_stays_slow_in_figures_though_it_computes_less_and_the_iteration_is_short() -> None:
    rank = Rank()
    rank.step(60)
    rank.step(40, micro=2 * MICRO)
    before = rank.step(1, micro=2 * MICRO).healthy_compute_ns
    signals = rank.step(200, share=2, micro=2 * MICRO)
    assert signals.onset is None, "the iteration time is healthy again"
    assert set(signals.compute_ns) == {PER_RANK * 2 * MICRO + FIXED}, "longer than the iteration"
    assert set(signals.wait_ns) == {0}
    assert signals.healthy_compute_ns == before, "nothing is learned from it"
    assert signals.micro == MicroShare(per_rank=PER_RANK, share=2, micro_ns=2 * MICRO)
    relieved = rank.step(10, share=2)
    assert set(relieved.compute_ns[-6:]) == {PER_RANK * MICRO + FIXED}


def test_even_shares_are_learned_from_again() -> None:
    rank = Rank()
    rank.step(60)
    rank.step(60, share=5, micro=MICRO * 9 // 10)
    learned = rank.step(300, micro=MICRO * 9 // 10).healthy_compute_ns
    assert learned == pytest.approx(PER_RANK * MICRO * 0.9 + FIXED, rel=0.02)


def test_numbers_at_their_bounds_stay_within_64_bits() -> None:
    shares = Shares()
    for share in (1, MAX_PER_RANK * MAX_SHARES):
        turns = [Turn(0, share, even=False)]
        shares.said = MicrobatchReport(generation=1, per_rank=MAX_PER_RANK, turns=turns, micro_ns=MAX_MICRO_NS)
        evened = shares.evened_ns(1 << 60, 5)
        assert evened is not None
        assert 0 <= evened < 1 << 63


def test_without_a_word_of_the_script_nothing_changes() -> None:
    shares = Shares()
    assert (shares.evened_ns(7, 5), shares.moved(5), shares.reported()) == (7, False, None)
    shares.said = MicrobatchReport(generation=1, per_rank=4, turns=[Turn(3, 4, even=True)])
    assert (shares.evened_ns(7, 5), shares.evened_ns(None, 5)) == (7, None)
    assert shares.reported() == MicroShare(per_rank=4, share=4)


def test_where_passes_cannot_be_timed_the_ratio_of_shares_has_to_do() -> None:
    shares = Shares()
    turns = [Turn(0, 4, even=True), Turn(10, 2, even=False)]
    shares.said = MicrobatchReport(generation=1, per_rank=4, turns=turns, timed=False)
    assert (shares.evened_ns(100, 5), shares.evened_ns(100, 20)) == (100, 200)
    assert shares.reported() == MicroShare(per_rank=4, share=2, timed=False)
    shares.said = MicrobatchReport(generation=1, per_rank=MAX_PER_RANK, turns=[Turn(0, 1, even=False)], timed=False)
    evened = shares.evened_ns(1 << 60, 5)
    assert evened is not None
    assert 0 <= evened < 1 << 63


class Stage:
    """A rank of a pipeline: two calls for each of its micro-batches, and one for the step."""

    def __init__(self) -> None:
        self.script = Script()
        self.chain = RankChain(Detection())
        self._fed = 0
        self._turns: list[Turn] = []

    def step(self, times: int, share: int = PER_RANK, micro: int = MICRO, wait: int = 2 * MS) -> RankSignals:
        self.unread(times, share, micro, wait)
        return self.read()

    def unread(self, times: int, share: int = PER_RANK, micro: int = MICRO, wait: int = 2 * MS) -> None:
        """Train so many steps of which the agent has not read anything yet."""
        if not self._turns or self._turns[-1].share != share:
            self._turns.append(Turn(self.script.now_ns, share, even=share == PER_RANK))
        for _ in range(times):
            for _ in range(share):
                self.script.call(Call(Op.RECV, 1024, 0, 2 * MS))
                self.script.call(Call(Op.SEND, 2048, micro))
            self.script.call(Call(Op.ALL_REDUCE, 4096, 0, wait))

    def read(self) -> RankSignals:
        self.chain.shares.said = MicrobatchReport(generation=1, per_rank=PER_RANK, turns=list(self._turns), timed=False)
        self.chain.feed(self.script.records[self._fed :])
        self._fed = len(self.script.records)
        return self.chain.signals(0, 0)


@pytest.mark.parametrize("share", [3, 6])
def test_other_shares_are_other_calls_of_a_stage_and_its_levels_and_numbers_go_on(share: int) -> None:
    stage = Stage()
    before = stage.step(60)
    assert stage.chain.period_calls == 2 * PER_RANK + 1
    stage.step(20, micro=2 * MICRO)
    moved = stage.step(20, share=share, micro=2 * MICRO)
    assert stage.chain.period_calls == 2 * share + 1
    assert abs(moved.iterations - 100) <= 4, "as the ranks count whose share is what it was"
    assert (moved.healthy_compute_ns, moved.healthy_iteration_ns) == (
        before.healthy_compute_ns,
        before.healthy_iteration_ns,
    )
    assert moved.compute_ns[-1] == pytest.approx(2 * (before.healthy_compute_ns or 0), rel=0.1)
    stage.step(20)
    slow = stage.step(20, micro=2 * MICRO)
    assert slow.onset is not None, "known by the levels of before, and not learned anew"
    assert abs(slow.onset.iteration - 120) <= 8
    anchor = stage.chain.memory().anchor
    assert anchor is None or abs(anchor.iteration - slow.iterations) <= 1, "the next agent goes on with these numbers"


def test_what_its_calls_took_is_known_again_when_a_stage_has_its_even_share_back() -> None:
    stage = Stage()
    stage.step(60)
    stage.step(20, share=6)
    back = stage.step(12)
    assert back.wait_ns, "learned before, and not anew"
    slow = stage.step(20, wait=300 * MS)
    assert slow.onset is not None
    excess = stage.chain.lasting_excess()
    assert sum(map(sum, excess.values())) == pytest.approx(298 * MS, rel=0.05)


def test_a_rank_whose_share_stays_makes_the_same_calls_and_is_followed_on() -> None:
    stage = Stage()
    before = stage.step(60)
    stage._turns.append(Turn(stage.script.now_ns, PER_RANK, even=False))  # others have moved some
    after = stage.step(5)
    assert after.iterations == before.iterations + 5
    assert after.wait_ns


def test_a_rank_that_is_a_replica_makes_the_same_calls_and_is_followed_on_though_nobody_times_its_passes() -> None:
    """On a device, or with sharded parameters."""
    rank = Rank(timed=False, same_calls=True)
    before = rank.step(60)
    after = rank.step(8, share=2)
    assert (after.iterations, after.period_calls) == (before.iterations + 8, before.period_calls)
    assert after.compute_ns[-1] == (2 * MICRO + FIXED) * PER_RANK // 2, "by the ratio of shares"
    rank.step(1, share=6)
    assert rank.chain.iterations == before.iterations + 9


@pytest.mark.parametrize("unread", [1, 6, 12])
def test_steps_of_the_share_before_that_are_read_with_its_end_are_not_taken_for_the_new_ones(unread: int) -> None:
    """An agent reads a busy rank's calls each second, and a quiet one's less often: many steps at a time."""
    stage = Stage()
    before = stage.step(60)
    stage.unread(unread)
    stage.unread(8, share=6)
    stage.unread(unread, share=3)
    moved = stage.step(20, share=3)
    assert stage.chain.period_calls == 2 * 3 + 1
    assert moved.healthy_compute_ns == before.healthy_compute_ns
    assert abs(moved.iterations - (60 + 2 * unread + 28)) <= 6
