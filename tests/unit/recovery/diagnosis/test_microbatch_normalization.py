"""A rank with another share is compared by what its even share would take, a part of which is always the same."""

from __future__ import annotations

import pytest

from falcon_core.recovery.diagnosis.microbatch_normalization import evened
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.microbatches import MicroShare
from tests.unit.recovery.seen import MS, POLICY, four_pods, rank, replace

HEALTHY = 200  # ms, of 8 micro-batches
PIPELINE = replace(POLICY, world_size=4, stages=2, layout=Parallelism(data=2, pipeline=2))


def job(
    fixed: float, shares: tuple[int, ...], slow: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0), *, timed: bool = False
) -> Observation:
    """Return four ranks of which ``fixed`` of the computation does not depend on the share, as their agents say it."""
    ranks = []
    for number, (share, factor) in enumerate(zip(shares, slow, strict=True)):
        taken = factor * HEALTHY * (fixed + (1 - fixed) * share / 8)
        said = taken * 8 / share
        micro = MicroShare(per_rank=8, share=share, timed=timed)
        own = {"compute_ns": [round(said * MS)] * 16, "healthy_compute_ns": HEALTHY * MS, "micro": micro}
        ranks.append(rank(number, **own))
    return four_pods(ranks)


def computed(obs: Observation, policy: Policy = PIPELINE) -> list[float]:
    return [round(each.sent.compute_ns[-1] / MS, 3) for each in evened(Look(obs, policy)).ranks]


@pytest.mark.parametrize("fixed", [0.0, 0.1, 0.4, 0.8])
def test_the_fixed_part_is_found_by_the_ranks_that_compute_more(fixed: float) -> None:
    obs = job(fixed, (5, 11, 5, 11), (1.7, 1.0, 1.0, 1.0))
    assert computed(obs) == pytest.approx([1.7 * HEALTHY, HEALTHY, HEALTHY, HEALTHY], rel=1e-4)
    micros = [each.sent.micro for each in evened(Look(obs, PIPELINE)).ranks]
    times = [micro.micro_ns / MS for micro in micros if micro is not None and micro.micro_ns is not None]
    each = (1 - fixed) * HEALTHY / 8
    assert times == pytest.approx([1.7 * each, each, each, each], rel=1e-4)


def test_each_stage_has_its_own_part() -> None:
    first, second = job(0.5, (6, 10, 6, 10)), job(0.1, (6, 10, 6, 10))
    obs = replace(first, ranks=[*first.ranks[:2], *second.ranks[2:]])
    assert computed(obs) == pytest.approx([HEALTHY] * 4, rel=1e-4)


def test_a_stage_where_it_does_not_show_is_as_the_others_are() -> None:
    obs = job(0.4, (6, 10, 6, 10))
    helper = replace(obs.ranks[1], sent=replace(obs.ranks[1].sent, healthy_compute_ns=None))
    assert computed(replace(obs, ranks=[obs.ranks[0], helper, *obs.ranks[2:]])) == pytest.approx([HEALTHY] * 4)


def test_where_it_does_not_show_nothing_changes() -> None:
    even = job(0.5, (8, 8, 8, 8))
    assert evened(Look(even, PIPELINE)) is even
    timed = job(0.5, (6, 10, 6, 10), timed=True)
    assert evened(Look(timed, PIPELINE)) is timed
    unknown = job(0.5, (6, 10, 6, 10))
    ranks = [replace(each, sent=replace(each.sent, healthy_compute_ns=None)) for each in unknown.ranks]
    unknown = replace(unknown, ranks=ranks)
    assert computed(unknown) == [round(each.sent.compute_ns[-1] / MS, 3) for each in unknown.ranks]


def test_a_rank_that_computes_more_and_is_slow_makes_nobody_slow() -> None:
    found = computed(job(0.4, (6, 10, 6, 10), (1.0, 2.0, 1.0, 1.0)))
    assert found[0] <= HEALTHY * 1.14, "at most what its agent says"
    assert found[2:] == pytest.approx([HEALTHY] * 2, rel=1e-4)
