"""Slowdowns without a name in jobs whose replicas differ by nature: they end once each replica is as it was."""

from __future__ import annotations

import pytest

from falcon_core.recovery import Look, RecoveryState, machine
from falcon_core.recovery.mitigation import rebalance
from falcon_core.recovery.model.observation import Observation
from tests.unit.recovery.seen import MS, NOW, replace
from tests.unit.recovery.shared_out import FIXED_MS, LADDER, MOVED, ORDERED, job, slow

BY_NATURE = (45, 40, 52)  # ms of a micro-batch
SHARES = (4, 5, 3)
HEALTHY_NS = (FIXED_MS + 4 * max(BY_NATURE) + 50) * MS


def seen_at(
    seconds: float, micro_ms: tuple[int, ...] = BY_NATURE, healthy_ms: tuple[int, ...] = BY_NATURE
) -> Observation:
    obs = job(micro_ms, shares=SHARES)
    ranks = [
        replace(
            rank,
            sent=replace(
                rank.sent,
                healthy_compute_ns=(FIXED_MS + 4 * each) * MS,
                healthy_iteration_ns=HEALTHY_NS,
                iterations=100 + int(seconds),
            ),
        )
        for rank, each in zip(obs.ranks, healthy_ms, strict=True)
    ]
    return replace(obs, now=NOW + seconds, ranks=ranks)


def suspected() -> RecoveryState:
    known = slow(moved=MOVED)
    times = replace(known.times, healthy_ns=HEALTHY_NS)
    unnamed = replace(known, id="", phase="Suspected", subject=None, times=times)
    return RecoveryState(slowdowns=[unnamed], sharing=replace(ORDERED, shares=list(SHARES)))


def after_looks(micro_ms: tuple[int, ...]) -> RecoveryState:
    state = suspected()
    for seconds in (0.0, 200.0, 400.0, 3600.0):
        state = machine.step(state, Look(seen_at(seconds, micro_ms), LADDER)).state
    return state


def test_a_slowdown_without_a_name_ends_when_each_replica_is_as_it_was() -> None:
    state = after_looks(BY_NATURE)
    assert not state.slowdowns
    assert state.sharing is not None
    assert state.sharing.is_even


@pytest.mark.parametrize("micro_ms", [(45, 40, 60), (60, 40, 52)])
def test_it_stays_while_a_replica_takes_longer_than_it_did(micro_ms: tuple[int, ...]) -> None:
    assert after_looks(micro_ms).slowdowns


def test_a_replica_of_which_nothing_healthy_is_known_is_held_against_its_peers() -> None:
    unnamed = suspected().slowdowns[0]
    look = Look(seen_at(0.0), LADDER)
    since_start = replace(unnamed, onset=replace(unnamed.onset, iteration=1))
    assert rebalance.is_over(unnamed, look)
    assert not rebalance.is_over(since_start, look), "its agents have learned the slow times"
    times = replace(unnamed.times, healthy_ns=HEALTHY_NS * 2 // 3)
    assert not rebalance.is_over(replace(unnamed, times=times), look), "the same, of a slowdown that was kept"
    unknown = replace(look.obs, ranks=job(BY_NATURE, shares=SHARES).ranks)
    assert not rebalance.is_over(unnamed, replace(look, obs=unknown))


def test_what_agents_learn_after_a_restart_ends_no_slowdown_that_began_before_it() -> None:
    """In the next generation the slow rank's agent takes its slow computation for healthy."""
    state = suspected()
    [unnamed] = state.slowdowns
    later = replace(seen_at(0.0, (45, 40, 60), (45, 40, 60)), generation=unnamed.onset.generation + 1)
    assert rebalance.is_over(unnamed, Look(replace(later, generation=unnamed.onset.generation), LADDER))
    assert not rebalance.is_over(unnamed, Look(later, LADDER))
