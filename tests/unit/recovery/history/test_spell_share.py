"""A node that flaps has more spells than random disturbances give to any node of the job."""

from __future__ import annotations

import random

import pytest

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.history import flapping, spell_share
from falcon_core.recovery.model.slowdown import NodeSpells
from falcon_core.recovery.model.state import Habits, RecoveryState
from tests.unit.recovery.incidents import located, named
from tests.unit.recovery.seen import NOW, POLICY, replace


def known(**times: int) -> RecoveryState:
    """Return the state in which nodes were slow so often, all of them since the same time."""
    spells = [
        NodeSpells(node=node, at=NOW, since=NOW, times=own, others=sum(times.values()) - own)
        for node, own in times.items()
    ]
    return RecoveryState(habits=Habits(node_spells=spells))


@pytest.mark.parametrize(
    ("before", "nodes", "flaps"),
    [
        ({"a": 1}, 8, False),  # two spells
        ({"a": 2}, 8, True),
        ({"a": 2}, 4, False),
        ({"a": 3}, 4, True),
        ({"a": 2, "b": 2}, 8, True),  # two nodes that flap in turn
        ({"a": 2, "b": 2, "c": 2}, 8, False),
        ({"a": 2, "b": 3, "c": 3}, 8, True),  # three nodes
        ({"a": 2, "b": 1, "c": 1, "d": 1}, 8, False),
        ({"a": 9, "b": 1, "c": 1, "d": 1}, 8, True),
        ({"a": 2000, "b": 2000, "c": 2000}, 3, False),
        ({"a": 1}, 21, True),
        ({"a": 1}, 20, False),
        ({"a": 4}, 2, False),
        ({"a": 5}, 2, True),
        ({"a": 9}, 1, False),  # a single node has nothing to be compared with
    ],
)
def test_a_node_stands_out_by_its_share_of_the_spells(before: dict[str, int], nodes: int, flaps: bool) -> None:
    assert spell_share.stands_out(known(**before), "a", nodes) == flaps


@pytest.mark.parametrize("nodes", [4, 8, 16])
@pytest.mark.parametrize("leaves", [False, True])
def test_random_disturbances_rarely_make_a_node_stand_out(nodes: int, leaves: bool) -> None:
    """``leaves``: the node that was slow most often is left now and then, and what is known of it is forgotten."""
    chance, found, state = random.Random(nodes), 0, RecoveryState(incidents=1)
    for number in range(2000):
        now = NOW + number
        node = f"node-{chance.randrange(nodes)}"
        found += spell_share.stands_out(state, node, nodes)
        slow = located(loss=Loss(seconds=1.0), onset_at=now, culprit=replace(named(located()), node=node))
        state = flapping.remember(state, slow, now, POLICY)
        if leaves and number % 10 == 0:
            most = max(state.habits.node_spells, key=lambda known: known.times)
            state = flapping.forget(state, most.node)
    assert found < 2000 * spell_share.CHANCE


@pytest.mark.parametrize("nodes", [2, 5, 21, 28, 200])
def test_about_one_random_disturbance_of_twenty_meets_a_node_that_stands_out(nodes: int) -> None:
    chance, found, slow = random.Random(nodes), 0, located()
    for _ in range(40):
        state = RecoveryState()
        for number in range(30):
            node, now = f"node-{chance.randrange(nodes)}", NOW + number
            found += spell_share.stands_out(state, node, nodes)
            state = spell_share.counted(state, node, replace(slow, onset_at=now), now, POLICY, seconds=1.0)
    assert found < 40 * 30 / 15


def test_the_memory_is_bounded_and_an_old_spell_is_forgotten() -> None:
    state = known(a=2)
    slow = located(onset_at=NOW + 10 * POLICY.window_seconds)
    assert spell_share.counted(state, "a", slow, slow.onset.at, POLICY, seconds=1.0).habits.node_spells[0].times == 1
    for number in range(50):
        state = spell_share.counted(state, f"node-{number}", located(onset_at=NOW), NOW, POLICY, seconds=1.0)
    assert len(state.habits.node_spells) == spell_share.MOST_NODES
