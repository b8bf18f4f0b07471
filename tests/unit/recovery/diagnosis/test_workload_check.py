"""Who stands out bytes and all, where sizes vary: what a rank's bytes explain may be learned wrong."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery.diagnosis.stragglers import compared_ranks, each_straggler, stragglers
from tests.unit.recovery.seen import MS, ONSET, POLICY, seen, unnamed

SLOW = unnamed(350 * MS)


def named(compute_ms: int, load: float | None, peers_load: float | None = 1.3) -> list[set[int]]:
    """Return whom both rules find: rank 2 computes so long, as it would be at its usual bytes, the others 200 ms."""
    shared = {"iteration_ns": [650 * MS] * 16, "load": peers_load}
    slow = {**shared, "compute_ns": [compute_ms * MS] * 16, "load": load}
    ranks = compared_ranks(seen(ranks={0: shared, 1: shared, 2: slow}))
    return [
        {out.rank for out, _ in found}
        for found in (stragglers(ranks, POLICY, SLOW), each_straggler(ranks, POLICY, SLOW))
    ]


@pytest.mark.parametrize("compute_ms", [260, 400])  # its own excess; beyond the median rule's factor
@pytest.mark.parametrize("load", [1.3, 1.4, 1.25, None])
def test_a_rank_that_is_slow_with_the_load_of_its_peers_is_found(compute_ms: int, load: float | None) -> None:
    assert named(compute_ms, load) == [{2}, {2}]


def test_a_rank_that_computes_as_long_as_its_peers_in_all_is_not_found() -> None:
    """Its time would be 1.2 × its peers', had it learned that the longer batches explain 1.3 × of it and not 1.08 ×."""
    assert named(240, 1.08) == [set(), set()]


def test_a_rank_that_has_less_to_do_is_found_where_the_others_wait_for_it_all_the_same() -> None:
    assert named(400, 1.08) == [{2}, {2}]


def test_where_no_other_load_is_known_its_own_is_believed() -> None:
    assert named(260, 1.08, peers_load=None) == [{2}, {2}]


def by_nature(compute_ms: int, **fields: Any) -> list[set[int]]:
    """Return whom both rules find, where rank 2 computed 400 ms and its peers 200 ms before the job became slow."""
    shared = {"iteration_ns": [850 * MS] * 16, "onset": ONSET}
    own = {**shared, "compute_ns": [compute_ms * MS] * 16, "healthy_compute_ns": 400 * MS, **fields}
    ranks = compared_ranks(seen(ranks={0: shared, 1: shared, 2: own}))
    return [
        {out.rank for out, _ in found}
        for found in (stragglers(ranks, POLICY, SLOW), each_straggler(ranks, POLICY, SLOW))
    ]


def test_a_rank_that_is_slower_than_its_peers_by_nature_is_not_found() -> None:
    assert by_nature(400) == by_nature(430) == [set(), set()]


def test_such_a_rank_is_found_if_it_computes_longer_than_it_did_or_its_past_is_not_known() -> None:
    assert by_nature(600) == [{2}, {2}]
    assert by_nature(400, healthy_compute_ns=None) == [{2}, {2}]
    assert by_nature(400, onset=None) == [{2}, {2}], "its agent may have learned the slow time"
