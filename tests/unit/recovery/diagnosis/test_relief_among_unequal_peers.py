"""Relief of a rank whose peers differ by nature: by unequal pipeline stages, or by experts with uneven loads."""

from __future__ import annotations

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from falcon_core.recovery.diagnosis.culprit_timing import computes_as_before, is_slow_now
from falcon_core.recovery.diagnosis.stragglers import no_longer_slow
from falcon_core.recovery.model.observation import Look, Observation, RankSeen
from falcon_core.recovery.model.slowdown import Culprit, Peers
from tests.unit.recovery.incidents import located
from tests.unit.recovery.seen import MS, POLICY, locate, member, rank, replace, seen, unnamed

# The computation of the rank that becomes slow, then of its peers, within 50 % around 200 ms.
_SHARES = st.lists(st.integers(150, 300), min_size=3, max_size=40)
_GROWTH = st.sampled_from([1.3, 1.5, 2.0, 3.0])


def _seen(shares: list[int], factors: dict[int, float], common: float = 1.0) -> Observation:
    """Return ranks of these healthy computations [ms]; ``factors``: how much slower a rank is, by rank."""
    compute_ns = [round(share * factors.get(number, 1.0) * common * MS) for number, share in enumerate(shares)]
    longest = max(compute_ns) + 50 * MS
    ranks = [_rank(number, shares[number], own, longest) for number, own in enumerate(compute_ns)]
    return replace(seen(), members=[member(number) for number in range(len(shares))], ranks=ranks)


def _rank(number: int, share: int, compute_ns: int, longest: int) -> RankSeen:
    return rank(
        number,
        healthy_compute_ns=share * MS,
        compute_ns=[compute_ns] * 16,
        iteration_ns=[longest] * 16,
        healthy_iteration_ns=longest,
    )


def _named(shares: list[int], growth: float) -> tuple[Culprit, Look]:
    """Name the first rank, which is so much slower than it was."""
    policy = replace(POLICY, world_size=len(shares))
    # The other ranks vary too little to be the culprit; the job is as much slower as the first rank.
    culprit = locate(_seen(shares, {0: growth}), policy, unnamed(250 * MS + round((growth - 1) * shares[0] * MS)))
    assert culprit is not None
    return culprit, Look(_seen(shares, {}), policy)


@settings(max_examples=50)
@given(shares=_SHARES, growth=_GROWTH, common=st.sampled_from([0.7, 0.9, 1.0, 1.2, 1.5]))
@example(shares=[200, 150, 200, 260], growth=1.3, common=1.0)
@example(shares=[200, 180, 220], growth=1.3, common=1.0)
def test_relief_is_found_whatever_the_peers_differ_by(shares: list[int], growth: float, common: float) -> None:
    culprit, well = _named(shares, growth)
    assume(culprit.rank == 0)  # by nature another rank may stand out more
    slow = located(culprit=culprit, unreported=True)
    for again in (1.0, common):
        look = Look(_seen(shares, {}, again), well.policy)
        assert no_longer_slow(slow, look)
        assert computes_as_before(culprit, look)
        assert not is_slow_now(culprit, look)
        still = Look(_seen(shares, {0: growth}, again), well.policy)
        assert not no_longer_slow(slow, still)
        assert is_slow_now(culprit, still)


@settings(max_examples=50)
@given(shares=st.lists(st.integers(150, 300), min_size=4, max_size=40), growth=_GROWTH, further=st.integers(1, 3))
def test_a_further_slow_peer_changes_nothing(shares: list[int], growth: float, further: int) -> None:
    """Check both with a peer that becomes slow, and with one that was slow when the rank was named and is well."""
    culprit, well = _named(shares, growth)
    assume(culprit.rank == 0)
    slow = located(culprit=culprit, unreported=True)
    was_slow = culprit.peers.compute_ns | {further: round(1.4 * shares[further] * MS)}
    before = replace(culprit, peers=Peers(compute_ns=was_slow))
    assert no_longer_slow(replace(slow, culprit=before), well)
    assert no_longer_slow(slow, Look(_seen(shares, {further: 2.0}), well.policy))
    assert not no_longer_slow(slow, Look(_seen(shares, {0: growth, further: 2.0}), well.policy))
