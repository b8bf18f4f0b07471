"""The growth that all ranks of a group share, while some of them are slow for another reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.recovery.diagnosis.shared_growth import common
from falcon_core.recovery.model.observation import Look
from tests.unit.recovery.seen import MS, POLICY, member, rank, replace, seen


@settings(max_examples=25)
@given(
    ranks=st.integers(3, 20),
    growth=st.sampled_from([1.0, 1.2, 2.0]),
    slower=st.lists(st.floats(1.05, 5.0), max_size=30),
)
def test_three_quarters_of_a_group_may_be_slower_for_another_reason(
    ranks: int, growth: float, slower: list[float]
) -> None:
    factors = slower[: 3 * ranks // 4] + [1.0] * ranks
    compute_ns = [round(200 * MS * growth * factor) for factor in factors[:ranks]]
    policy = replace(POLICY, world_size=ranks)
    seen_ranks = [rank(number, compute_ns=[own] * 16) for number, own in enumerate(compute_ns)]
    members = [member(number) for number in range(ranks)]
    shared = common(seen_ranks, Look(replace(seen(), members=members, ranks=seen_ranks), policy))
    assert shared is not None
    assert shared.of(0, policy) == pytest.approx(growth)
