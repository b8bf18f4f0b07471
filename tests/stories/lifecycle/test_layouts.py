"""Change the operator's version in the middle of a replacement: upgrade, rollback, and a layout without a way back."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from falcon_operator.intent.model import layout
from falcon_operator.intent.model.layout import LAYOUTS, Layout
from tests.world.running import operator, run, shown, trained
from tests.world.world import World

OWN = LAYOUTS[-1].version


def moved(spec: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a run of an operator that kept the recovery in another field."""
    return {key: value for key, value in spec.items() if key != "memory"} | {"recovery": spec["memory"]}


def added(spec: dict[str, Any]) -> dict[str, Any]:
    return spec | {"recovery": spec["recovery"] | {"added": True}}


def newer(upgrade: Any, *, one_way: bool) -> tuple[Layout, ...]:
    """Return the layouts of an operator with one version more than this one."""
    oldest = OWN + 1 if one_way else LAYOUTS[-1].readable_from
    return (*LAYOUTS, Layout(version=OWN + 1, readable_from=oldest, release="7.1.0", upgrade=upgrade))


def version(world: World) -> int:
    assert world.trainingrun is not None
    return int(world.trainingrun["spec"].get("version", 1))


async def with_a_pod_prepared(world: World) -> None:
    """Run until a slow rank's next pod is made, while the ranks still train."""
    await trained(world)
    world.node_of(2).slow = 3.0
    await run(world, operator, lambda w: len(w.made) == 4)
    incident = world.intent.recovery.leader
    assert incident is not None
    assert (incident.phase, world.generation, version(world)) == ("Mitigating", 1, OWN)


async def to_the_end(world: World) -> None:
    """Run until the replacement is over, and check that it is the one that the first operator began."""
    await run(world, operator, lambda w: w.status.diagnoses and "fenced" in w.status.diagnoses[0].result, seconds=120)
    assert (world.node_of(2).name, world.generation) == ("spare-1", 2)
    assert (world.status.counters.replacements, world.claims, len(world.made)) == (1, 1, 4)
    (note,) = world.status.diagnoses
    assert (note.rank, note.state) == (2, "Resolved")
    assert [reason for reason, _ in world.events] == [
        "Started",
        "Straggler",
        "Replacing",
        "Started",
        "Resolved",
        "BurnIn",
    ]


async def test_an_upgraded_operator_finishes_the_replacement_that_the_older_one_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await with_a_pod_prepared(world)
    assert world.trainingrun is not None
    spec = world.trainingrun["spec"]
    spec["memory"] = spec.pop("recovery")  # as the older operator would have stored it
    monkeypatch.setattr(layout, "LAYOUTS", newer(moved, one_way=True))
    await to_the_end(world)
    assert version(world) == OWN + 1
    assert "memory" not in world.trainingrun["spec"]


async def test_versions_that_read_each_other_take_turns_during_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await with_a_pod_prepared(world)
    layouts = {OWN: LAYOUTS, OWN + 1: newer(added, one_way=False)}
    steps = [
        (OWN + 1, lambda w: w.generation == 2),
        (OWN, lambda w: w.intent.recovery.leader is not None and w.intent.recovery.leader.phase == "Checking"),
        (OWN + 1, lambda w: w.intent.recovery.leader is None),
    ]
    for number, until in steps:
        monkeypatch.setattr(layout, "LAYOUTS", layouts[number])
        await run(world, operator, until)
        assert version(world) == number
    monkeypatch.setattr(layout, "LAYOUTS", LAYOUTS)
    await to_the_end(world)


async def test_a_layout_without_a_way_back_is_left_alone_by_an_operator_that_is_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await with_a_pod_prepared(world)
    with monkeypatch.context() as upgrade:
        upgrade.setattr(layout, "LAYOUTS", newer(added, one_way=True))
        await run(world, operator, lambda w: version(w) == OWN + 1)
    before = deepcopy(world.trainingrun)
    made, plans, iterations, later = list(world.made), len(world.plans), world.iterations, world.clock.seconds + 20
    await run(world, operator, lambda w: w.clock.seconds > later)
    assert world.trainingrun == before
    assert (world.made, len(world.plans), world.claims) == (made, plans, 1)
    assert world.iterations > iterations + 20, "training goes on"
    failed = shown(world, "ReconcileFailed")
    assert failed is not None
    assert (failed.status, failed.reason) == ("True", "NewerLayout")
    assert "Run operator release 7.1.0 or newer." in failed.message
    assert world.events.pop()[0] == "ReconcileFailed"
    monkeypatch.setattr(layout, "LAYOUTS", newer(added, one_way=True))
    await to_the_end(world)
    failed = shown(world, "ReconcileFailed")
    assert failed is not None
    assert failed.status == "False"
