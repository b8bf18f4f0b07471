"""A slow node's replacement is being prepared when the user forbids it: nothing more is done."""

from __future__ import annotations

import pytest

from falcon_operator.api.policy import MitigationSpec, Strategy
from tests.world.running import idle, operator, run, trained
from tests.world.world import World

FORBIDDEN = {
    "observe": MitigationSpec(mode="Observe"),
    "off": MitigationSpec(mode="Off"),
    "the strategy is no longer named": MitigationSpec(strategies=[Strategy(type="Ignore")]),
}


async def preparing() -> World:
    """Return a world in which pods are being prepared for two slow nodes, and cannot be placed yet."""
    world = World(replicas=6, spares=3)
    await trained(world)
    for replica in (1, 2):
        world.node_of(replica).slow = 3.0
    for name in ("spare-1", "spare-2"):
        world.nodes[name].stuck = {}
    await run(world, operator, lambda w: len(w.made) == 8, seconds=200)
    return world


@pytest.mark.parametrize("forbidden", FORBIDDEN)
async def test_a_replacement_that_is_being_prepared_is_given_back(forbidden: str) -> None:
    world = await preparing()
    kept = [world.pod_of(replica).uid for replica in range(6)]
    world.edit_spec(mitigation=FORBIDDEN[forbidden])
    for name in ("spare-1", "spare-2"):
        world.nodes[name].stuck = None
    await run(world, operator, lambda w: len(w.pods) == 6)
    await idle(world, operator, 60)
    assert [world.pod_of(replica).uid for replica in range(6)] == kept
    assert world.generation == 1
    assert world.exclusions == []
    assert all(spare.state != "Claimed" for spare in world.pool.status.spares)


async def test_a_replacement_is_prepared_again_once_it_is_allowed_again() -> None:
    world = await preparing()
    world.edit_spec(mitigation=FORBIDDEN["observe"])
    await run(world, operator, lambda w: len(w.pods) == 6)
    for name in ("spare-1", "spare-2"):
        world.nodes[name].stuck = None
    world.edit_spec(mitigation=MitigationSpec())
    await run(world, operator, lambda w: w.generation > 1, seconds=120)
