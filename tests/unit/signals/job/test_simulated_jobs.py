"""Faults put into small simulated 3D-parallel jobs: the right component and the right kind."""

from __future__ import annotations

import pytest

from evaluation.culprits.confusion import DOUBLE, SINGLE, Component, trial
from evaluation.culprits.parallel import FaultName, Shape
from falcon_core.signals.job.transfers import match, slow_links

SHAPE = Shape(pipeline=2, data=4, tensor=4)


@pytest.mark.parametrize("names", [(name,) for name in SINGLE], ids=" + ".join)
def test_one_fault(names: tuple[FaultName, ...]) -> None:
    truths, found, _ = trial(names, SHAPE, seed=1)
    assert found == truths


def test_two_slow_gpus() -> None:
    truths, found, _ = trial(DOUBLE[0], SHAPE, seed=1)
    assert len(truths) == 2
    assert set(found) == set(truths)


def test_a_slow_gpu_and_a_slow_link_elsewhere() -> None:
    truths, found, _ = trial(DOUBLE[1], SHAPE, seed=0)
    assert truths[0].ranks[0] not in truths[1].ranks, "the link's members move data slowly if one of them is slow"
    assert set(found) == set(truths)


def test_a_group_whose_own_calls_are_unseen_is_named_whole() -> None:
    truths, found, _ = trial(("slow GPU",), SHAPE, seed=1, hidden=frozenset({1}))
    assert found == [Component("group", SHAPE.tensor_group(truths[0].ranks[0]))]


@pytest.mark.parametrize("name", ["slow TP link", "slow DP link"])
def test_the_profile_finds_the_link_alone(name: FaultName) -> None:
    truths, _, job = trial((name,), SHAPE, seed=1)
    assert {link.members for link in slow_links(match(*job.profile()))} == {truths[0].ranks}


def test_the_profile_of_a_slow_gpu_blames_no_link() -> None:
    assert slow_links(match(*trial(("slow GPU",), SHAPE, seed=1)[2].profile())) == []
