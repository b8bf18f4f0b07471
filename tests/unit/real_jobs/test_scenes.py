"""The scenes of ``evaluation.real_jobs``: reproducible, and healthy or broken as they say."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.real_jobs.patterns import CHECKED, PATTERNS
from evaluation.real_jobs.scene import Pattern, entropy, scene_of
from evaluation.real_jobs.worlds.world import World
from falcon_sim.job.scenario import Scenario, checked


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("world", [16, 128])
def test_a_scene_can_be_played_at_both_sizes(pattern: Pattern, world: int) -> None:
    scene = scene_of(pattern, world, "high", 1)
    checked(Scenario(name=pattern.name, job=scene.job))
    assert scene.job.parallelism.world == world
    assert bool(scene.broken) != pattern.healthy
    for factors in (scene.compute, scene.work, scene.slowed, scene.links):
        assert (factors > 0).all()


def test_what_is_checked_holds_both_sorts() -> None:
    sorts = [PATTERNS[name].healthy for name in CHECKED]
    assert len(sorts) == 30
    assert 10 <= sum(sorts) <= 20


def test_the_same_case_gives_the_same_records() -> None:
    assert _records("straggler 1.5 ×, variable pipeline") == _records("straggler 1.5 ×, variable pipeline")


def test_a_fault_leaves_with_its_node_and_the_jobs_own_load_stays() -> None:
    pattern = PATTERNS["straggler 1.8 × beside a hot expert"]
    scene = scene_of(pattern, 16, "low", 0)
    (broken,) = scene.broken
    world = World(scene, [0])
    with_fault, _ = world.block(broken.onset)
    world.roles[broken.node] = scene.nodes
    without, _ = world.block(broken.onset)
    ratio = (with_fault.compute / without.compute).reshape(len(without), scene.nodes, -1).max(axis=(0, 2))
    assert ratio[broken.node] == pytest.approx(1.8)
    assert np.delete(ratio, broken.node) == pytest.approx(1.0)
    assert [group.draws.work.tolist() for group in with_fault.groups if group.draws.work is not None] == [
        group.draws.work.tolist() for group in without.groups if group.draws.work is not None
    ]


def _records(name: str) -> list[bytes]:
    pattern = PATTERNS[name]
    world = World(scene_of(pattern, 16, "high", 2), entropy(pattern, 16, "high", 2))
    world.begin()
    block, begins = world.block(390)
    return [writer.records(block, begins, 0, len(block)).tobytes() for writer in world.writers]
