"""Machines that are measured while training stands still, on a fake clock: before a node is taken, and when asked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_operator.api.trainingjob import CheckStatus
from tests.world.flows import ring
from tests.world.running import idle, operator, phases, reasons, run, state, trained
from tests.world.world import World

replace = msgspec.structs.replace


def moving(budget: str = "50%", **spec: Any) -> World:
    """Return a job whose work may move between its ranks."""
    world = World(spec={"detection": {"pauseBudget": budget}, **spec})
    world.work = "Hidden"
    return world


def ask(world: World, value: str = "now") -> None:
    """Ask for a check, as ``kubectl falcon check`` does."""
    assert world.job is not None
    metadata = replace(world.job.metadata, annotations={**world.job.metadata.annotations, "falcon.dev/check": value})
    world.job = replace(world.job, metadata=metadata)


def check(world: World) -> CheckStatus:
    assert world.status.check is not None
    return world.status.check


def is_over(world: World) -> bool:
    return world.status.check is not None and world.status.check.state in ("Done", "Failed")


# -- before a node is taken ------------------------------------------------------------------------------------------


async def test_a_machine_that_is_slow_by_itself_is_left() -> None:
    world = moving()
    await trained(world)
    slow = world.node_of(2)
    slow.slow, world.paused.rates = 1.8, {2: 1 / 1.8}
    await run(world, operator, state("Degraded"))
    (note,) = world.status.diagnoses
    assert note.what == "fail-slow, imbalance"
    assert "when a counter, or a measurement during a pause, shows a cause" in note.next
    await run(world, operator, lambda w: "MachineSlow" in reasons(w), seconds=90)
    await run(world, operator, lambda w: w.status.diagnoses[0].cause == "Unknown")
    (note,) = world.status.diagnoses
    assert note.why.startswith("its machine computes slowly by itself")
    assert "measured with all ranks at rest" in note.evidence or "measured during a pause of" in note.evidence
    assert "it computes 1.8x as long as its peers for the same fp32 work" in note.evidence
    world.paused.rates = {}
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved", seconds=90)
    assert world.node_of(2).name == "spare-1"
    assert reasons(world)[:5] == ["Started", "Imbalance", "Validating", "MachineSlow", "Replacing"]
    assert phases(world) == ["Prepare", "Hold", "Release"]
    assert world.paused.pauses[0] < 1.5


async def test_ranks_on_gpus_do_not_stand_still_for_a_test_of_cpus() -> None:
    world = moving()
    await trained(world)
    world.node_of(2).slow, world.paused.on_device = 1.8, True
    await run(world, operator, state("Degraded"))
    await run(world, operator, lambda w: phases(w)[-1:] == ["Release"], seconds=90)
    assert phases(world) == ["Prepare", "Release"]
    assert world.paused.pauses == []
    (note,) = world.status.diagnoses
    assert note.what == "fail-slow, imbalance"
    assert "while ranks run only CPUs are measured" in note.evidence + note.next


async def test_a_machine_that_was_slow_from_the_start_is_left_when_it_is_slow_by_itself() -> None:
    world = World(spec={"detection": {"pauseBudget": "50%"}})
    world.nodes["node-c"].slow = 1.4
    await run(world, operator, lambda w: w.status.diagnoses, seconds=120)
    (replica,) = [replica for replica in range(3) if world.node_of(replica).name == "node-c"]
    world.paused.rates = {replica: 1 / 1.4}
    await run(world, operator, lambda w: w.node_of(replica).name == "spare-1", seconds=200)
    assert "MachineSlow" in reasons(world)


@pytest.mark.slow
async def test_a_machine_that_computes_as_fast_as_its_peers_is_kept() -> None:
    world = moving()
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 1.8
    await run(world, operator, lambda w: "MachineAsFast" in reasons(w), seconds=120)
    await idle(world, operator, 300)
    assert phases(world) == ["Prepare", "Hold", "Release"], "not measured again soon"
    assert (world.claims, world.exclusions, world.generation) == (0, [], 1)
    (note,) = world.status.diagnoses
    assert (note.what, note.node) == ("fail-slow, imbalance", slow.name)
    assert "its machine computes as fast as theirs by itself" in note.why
    assert note.next.startswith(f"not replaced: {slow.name} computes as fast as its peers' nodes by itself")


async def test_the_loss_pays_for_the_pause_first() -> None:
    world = moving(mitigation={"strategies": [{"type": "Ignore"}, {"type": "ReplaceNode", "overheadSeconds": 60}]})
    await trained(world)
    world.node_of(2).slow = 1.8
    await run(world, operator, state("Degraded"))
    await run(world, operator, lambda w: phases(w), seconds=400, ticks=5)
    slow = world.intent.recovery.leader
    assert slow is not None
    assert slow.loss.seconds >= 60, "a blip stops no rank"


@pytest.mark.parametrize(
    "spec",
    [
        {"budget": "0%"},
        {"mitigation": {"mode": "Observe"}},
        {"mitigation": {"strategies": [{"type": "Ignore"}]}},
        {"mitigation": {"confidence": "Low", "strategies": [{"type": "Ignore"}, {"type": "ReplaceNode"}]}},
    ],
)
async def test_nobody_is_stopped_where_nothing_would_follow(spec: dict[str, Any]) -> None:
    world = moving(**spec)
    await trained(world)
    world.node_of(2).slow = 1.8
    await run(world, operator, lambda w: w.status.diagnoses)
    await idle(world, operator, 100)
    assert world.paused.orders == []


async def test_a_machine_that_cannot_be_measured_is_kept_and_that_is_said() -> None:
    world = moving()
    world.paused.unmeasured = {2}
    await trained(world)
    world.node_of(2).slow = 1.8
    await run(world, operator, lambda w: "NotValidated" in reasons(w), seconds=120)
    assert "could not be measured: the benchmark measured nothing" in world.status.diagnoses[0].evidence
    assert (world.claims, world.generation) == (0, 1)


# -- when somebody asks ----------------------------------------------------------------------------------------------


async def test_a_check_names_the_slow_machine_and_the_slow_link() -> None:
    world = World(replicas=4)
    world.flows = ring(4)
    await trained(world)
    world.paused.rates = {1: 0.5}
    world.paused.slow = {frozenset((2, 3)): 40e6}
    ask(world)
    await run(world, operator, is_over)
    await run(world, operator, lambda w: check(w).standstill_milliseconds)
    found = check(world)
    assert (found.asked, found.state) == ("now", "Done")
    assert len(found.slow) == 2, found.slow
    name = world.pod_of(1).name
    assert found.slow[0] == f"node-b (pod {name}): computes 2.0x as long as its peers for the same fp32 work"
    assert found.slow[1].startswith("the link between node-c and node-d: 40 Mbit/s")
    assert found.result == "machines: 4 compared, 1 slow; links: 4 measured, 1 findings"
    assert found.standstill_milliseconds == round(1e3 * world.paused.pauses[0])
    assert reasons(world) == ["Started", "Validating", "Checked"]
    assert (world.generation, world.status.diagnoses) == (1, [])


async def test_a_check_needs_no_budget_and_comes_once_for_each_value() -> None:
    world = World(spec={"detection": {"pauseBudget": "0%"}})
    await trained(world)
    ask(world)
    await run(world, operator, is_over)
    assert (check(world).state, check(world).slow) == ("Done", [])
    assert check(world).result.startswith("machines: 3 compared, none is slow")
    await idle(world, operator, 100)
    assert phases(world) == ["Prepare", "Hold", "Release"]
    ask(world, "again")
    await run(world, operator, lambda w: is_over(w) and check(w).asked == "again")
    assert phases(world) == ["Prepare", "Hold", "Release"] * 2


async def test_checks_keep_a_minute_apart() -> None:
    world = World()
    await trained(world)
    ask(world)
    await run(world, operator, is_over)
    ask(world, "again")
    begun = world.clock.seconds
    await run(world, operator, lambda w: is_over(w) and check(w).asked == "again", seconds=120)
    assert world.clock.seconds - begun > 50


async def test_two_pods_have_their_machines_compared() -> None:
    world = World(replicas=2)
    await trained(world)
    world.paused.rates = {1: 0.5}
    ask(world)
    await run(world, operator, is_over)
    assert len(check(world).slow) == 1
    assert "links" not in check(world).result


async def test_what_cannot_be_checked_is_said() -> None:
    world = World(replicas=1)
    await trained(world)
    ask(world)
    await run(world, operator, is_over)
    assert (check(world).state, check(world).result) == ("Failed", "one pod has no peer to be compared with")
    assert "CheckFailed" in reasons(world)


async def test_ranks_that_cannot_be_stopped_fail_the_check() -> None:
    world = World()
    world.paused.why = "its calls are not regular now"
    await trained(world)
    ask(world)
    await run(world, operator, is_over)
    assert check(world).result == "rank 0: its calls are not regular now"
    assert world.paused.pauses == []


async def test_ranks_that_came_too_late_are_tried_once_more() -> None:
    world = World()
    world.paused.past = True
    await trained(world)
    ask(world)
    await run(world, operator, lambda w: phases(w)[-1:] == ["Release"])
    assert not is_over(world)
    world.paused.past = False
    await run(world, operator, is_over, seconds=120)
    assert (check(world).state, check(world).slow) == ("Done", [])
    assert phases(world) == ["Prepare", "Hold", "Release"] * 2


async def test_a_check_that_comes_too_late_twice_has_failed() -> None:
    world = World()
    world.paused.past = True
    await trained(world)
    ask(world)
    await run(world, operator, is_over, seconds=120)
    assert check(world).state == "Failed"
    assert "was past the cut" in check(world).result
    assert phases(world) == ["Prepare", "Hold", "Release"] * 2
    first, second = (order.stops for order in world.paused.orders if order.phase == "Hold")
    assert min(second.values()) > min(first.values()), "the second order had more time"


async def test_a_check_outlives_a_restart_of_the_ranks() -> None:
    world = World()
    await trained(world)
    ask(world)
    await run(world, operator, lambda w: phases(w)[-1:] == ["Hold"])
    world.end_rank(0, signal=9)
    await run(world, operator, is_over, seconds=200)
    assert check(world).state in ("Done", "Failed")
    if check(world).state == "Failed":
        assert check(world).result


@pytest.mark.parametrize("crash", range(8))
async def test_an_operator_that_dies_at_any_instant_checks_once(crash: int) -> None:
    world = World()
    await trained(world)
    ask(world)
    world.crash_at = world.calls + 1 + crash
    await run(world, operator, lambda w: is_over(w) and check(w).standstill_milliseconds, seconds=150)
    assert (check(world).state, phases(world).count("Hold")) == ("Done", 1)
    assert len(world.paused.pauses) == 1
