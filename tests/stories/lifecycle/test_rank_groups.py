"""Ranks go on without a lost rank and get it back: the operator shows it, and restarts nothing."""

from __future__ import annotations

import msgspec
import pytest

from falcon_core.wire.reporting.groups import GroupChange, GroupReport, LostRank, RankEnd, RankGroup
from tests.stories.failures.test_nodes import add_spare
from tests.world.running import condition, idle, operator, reasons, run, shown, trained
from tests.world.world import World

PROCESS = 77


def meet(world: World) -> None:
    """Let the first group be formed."""
    world.groups = {0: GroupReport(group(world, [1, 2, 0]))}


def group(world: World, *groups: list[int], missing: tuple[int, ...] = ()) -> RankGroup:
    """Return the newest of these groups: each has its ranks, and was formed a second after its predecessor."""
    now = round(1000 * world.clock.unix())
    changes = [
        GroupChange(
            number,
            now - 1000 * (len(groups) - number),
            len(before),
            len(ranks),
            [LostRank(rank, PROCESS, "Gone") for rank in before if rank not in ranks],
            [rank for rank in ranks if rank not in before],
        )
        for number, (before, ranks) in enumerate(zip([[], *groups], groups, strict=False), 1)
    ]
    return RankGroup(len(groups), 3, len(groups[-1]), now, list(missing), changes=changes)


def lose(world: World) -> None:
    """Let rank 1 be lost: its own launcher sees how."""
    world.groups[0] = GroupReport(group(world, [0, 1, 2], [0, 2], missing=(1,)))
    world.groups[1] = GroupReport(None, [RankEnd(1, PROCESS, -9, round(1000 * world.clock.unix()))])


def rejoin(world: World) -> None:
    world.groups[0] = GroupReport(group(world, [0, 1, 2], [0, 2], [0, 1, 2]))


async def test_a_lost_rank_shows_until_another_process_has_taken_its_place() -> None:
    world = World(replicas=3, spares=0)
    await trained(world)
    assert world.status.group is None
    assert shown(world, "Elastic") is None
    meet(world)
    await run(world, operator, lambda w: w.status.group is not None, seconds=20)
    assert condition(world.status, "Elastic") == "True"

    lose(world)
    await run(world, operator, lambda w: condition(w.status, "Elastic") == "False", seconds=20)
    found = world.status.group
    assert found is not None
    assert (found.ranks, found.wanted, found.next) == (2, 3, "a new process of rank 1")
    node = world.node_of(1).name
    assert found.why == f"lost rank 1 (pod {found.lost[0].pod}, node {node}): killed by SIGKILL"
    assert [(lost.rank, lost.node, lost.cause) for lost in found.lost] == [(1, node, "ProcessKilled")]
    assert world.status.ready == "2/3"
    assert world.status.state == "Running"
    assert world.status.summary == "2 of 3 ranks train; waits for a new process of rank 1"
    finding = shown(world, "Elastic")
    assert finding is not None
    assert finding.reason == "FewerRanks"
    assert "killed by SIGKILL; waits for a new process of rank 1" in finding.message

    rejoin(world)
    await run(world, operator, lambda w: condition(w.status, "Elastic") == "True", seconds=20)
    found = world.status.group
    assert found is not None
    assert (found.number, found.ranks, found.next) == (3, 3, "")
    assert found.why.startswith("rank 1 joined; rank 1 was lost at ")
    assert world.status.ready == "3/3"
    assert [reason for reason in reasons(world) if reason in ("Shrunk", "Grown")] == ["Shrunk", "Grown"]
    notes = [note for reason, note in world.events if reason == "Shrunk"]
    assert "from 3 to 2 of 3 ranks in group 2: lost rank 1 (pod " in notes[0]
    assert world.generation == 1


@pytest.mark.parametrize(
    ("seconds", "why"), [(1.0, "killed by SIGKILL"), (None, "its connection to the others has ended")]
)
async def test_the_event_waits_for_the_report_of_the_lost_ranks_own_pod(seconds: float | None, why: str) -> None:
    world = World(replicas=3, spares=0)
    await trained(world)
    meet(world)
    await run(world, operator, lambda w: w.status.group is not None, seconds=20)
    lose(world)
    end = world.groups.pop(1)
    await idle(world, operator, seconds or 0.0)
    assert "Shrunk" not in reasons(world)
    if seconds is not None:
        world.groups[1] = end
    await run(world, operator, lambda w: "Shrunk" in reasons(w), seconds=5)
    assert [note for reason, note in world.events if reason == "Shrunk" and f"node-b): {why};" in note]


async def test_a_loss_that_is_over_before_the_next_look_has_both_events() -> None:
    world = World(replicas=3, spares=0)
    await trained(world)
    meet(world)
    await run(world, operator, lambda w: w.status.group is not None, seconds=20)
    lose(world)
    rejoin(world)
    await run(world, operator, lambda w: "Grown" in reasons(w), seconds=20)
    assert reasons(world).count("Shrunk") == reasons(world).count("Grown") == 1
    await idle(world, operator, 30)
    assert reasons(world).count("Shrunk") == 1
    assert condition(world.status, "Elastic") == "True"


async def test_another_operator_that_waits_for_the_reports_records_nothing_twice() -> None:
    world = World(replicas=3, spares=0)
    await trained(world)
    meet(world)
    lose(world)
    await run(world, operator, lambda w: "Shrunk" in reasons(w), seconds=20)
    report, world.groups[0] = world.groups[0], GroupReport()
    del world.received[world.pod_of(0).uid]  # the other pods have been heard already
    await run(world, operator, lambda w: True, seconds=5)
    assert world.status.group is not None
    assert world.status.group.ranks == 2
    world.groups[0] = report
    await idle(world, operator, 20)
    assert reasons(world).count("Shrunk") == 1


async def test_a_restart_of_all_ranks_begins_with_no_group() -> None:
    world = World(replicas=3, spares=0)
    await trained(world)
    add_spare(world, "spare-1")
    meet(world)
    lose(world)
    await run(world, operator, lambda w: condition(w.status, "Elastic") == "False", seconds=20)
    world.groups = {}
    world.kill_node(world.node_of(2).name)
    await run(world, operator, lambda w: w.generation == 2 and w.status.state == "Running", seconds=200)
    assert world.status.group is None
    assert condition(world.status, "Elastic") == "Unknown"
    assert world.status.summary == "all ranks train"
    meet(world)
    lose(world)
    await run(world, operator, lambda w: reasons(w).count("Shrunk") == 2, seconds=20)
    found = world.status.group
    assert found is not None
    assert found.generation == 2


async def test_a_pod_says_nothing_of_another_pods_ranks() -> None:
    world = World(replicas=3, spares=0)
    await trained(world)
    meet(world)
    lose(world)
    world.groups[2] = GroupReport(
        msgspec.structs.replace(group(world, [0]), size=1), [RankEnd(1, PROCESS, 3), RankEnd(1 << 20, 1, 3)]
    )
    world.groups[1] = GroupReport()
    await run(world, operator, lambda w: "Shrunk" in reasons(w), seconds=20)
    found = world.status.group
    assert found is not None
    assert found.ranks == 2
    assert [(lost.rank, lost.cause, lost.why) for lost in found.lost] == [
        (1, "", "its connection to the others has ended")
    ]
