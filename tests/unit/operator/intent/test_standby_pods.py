"""A job that wants standbys: what its plan asks for, and the condition that says what became of them."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.wire.launcher.launch import LaunchStandby
from tests.world.running import operator, run, shown_after, trained
from tests.world.world import World


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({}, "None"),
        ({"recovery": {"standby": "Imports"}}, "Imports"),
        ({"recovery": {"standby": "Processes"}}, "Processes"),
        ({"recovery": {"standby": "Imports"}, "launcher": "Own"}, "None"),
        ({"recovery": {"standby": "Processes"}, "launcher": "Own"}, "None"),
    ],
)
async def test_the_plan_asks_for_them_where_they_are_of_use(spec: dict[str, Any], wanted: str) -> None:
    world = World(spec=spec)
    await trained(world)
    assert world.plan is not None
    assert world.plan.standby == wanted
    assert (world.plan.next_master_port > 0) == (wanted == "Processes")


async def test_the_next_generation_meets_at_the_port_that_was_named_for_it() -> None:
    world = World(spec={"recovery": {"standby": "Processes"}})
    await trained(world)
    assert world.plan is not None
    named = world.plan.next_master_port
    assert named != world.plan.master_port
    world.end_rank(1, signal=9)
    await run(world, operator, lambda w: w.plan is not None and w.plan.generation == 2 and w.plan.phase == "Run")
    assert world.plan is not None
    assert world.plan.master_port == named


@pytest.mark.parametrize(
    ("held", "status", "reason", "words"),
    [
        (None, "False", "Preparing", "0 of 3 ranks have a standby"),
        (LaunchStandby(ready=0, wanted=1), "False", "Preparing", "when training has settled"),
        (LaunchStandby(ready=1, wanted=1), "True", "Waiting", "all 3 ranks have a standby"),
        (
            LaunchStandby(ready=1, wanted=1, why="A was set"),
            "True",
            "Waiting",
            "these are less prepared than they could be: ",
        ),
        (LaunchStandby(ready=0, wanted=1, why="too little memory is free"), "False", "StartsCold", "too little memory"),
    ],
)
async def test_the_condition_says_what_became_of_them(
    held: LaunchStandby | None, status: str, reason: str, words: str
) -> None:
    world = World(spec={"recovery": {"standby": "Imports"}})
    world.standby = held
    await trained(world)
    found = await shown_after(world, "StandbyReady")
    assert found is not None
    assert (found.status, found.reason) == (status, reason)
    assert words in found.message


async def test_a_launcher_of_the_users_own_is_told_that_they_are_useless() -> None:
    world = World(spec={"recovery": {"standby": "Imports"}, "launcher": "Own"})
    await trained(world)
    found = await shown_after(world, "StandbyReady")
    assert found is not None
    assert (found.status, found.reason) == ("False", "OwnLauncher")


async def test_a_job_without_has_no_such_condition() -> None:
    world = World()
    await trained(world)
    assert await shown_after(world, "StandbyReady") is None
