"""Nodes that flap, and micro-batches that move in each spell: the nodes are left before they cost twice a restart."""

from __future__ import annotations

import random

import msgspec
import pytest

from evaluation.year import faults
from evaluation.year.kinds import fleet
from evaluation.year.life import Life
from falcon_core.recovery import Command, Observation, RecoveryState, Switch
from falcon_core.recovery.model.slowdown import newest
from falcon_core.recovery.strategies import adjust_microbatches, replace_node
from falcon_sim.job.scenario import LADDER, SlowFault

BEGIN = 3600.0
MOVE_SECONDS = next(each.overhead_seconds or 0.0 for each in LADDER if each.type == adjust_microbatches.TYPE)
replace = msgspec.structs.replace


class Flapping(Life):
    """The life of a job in which nothing happens but spells of slow nodes. It saves often: a restart redoes little."""

    def __init__(self, name: str, hours: float) -> None:
        job = next(job for job in fleet() if job.name == f"{name}, small")
        kind = replace(job.kind, job=replace(job.kind.job, checkpoint_every_iterations=5))
        super().__init__(replace(job, kind=kind), seed=1, months=1)
        self.seconds = BEGIN + 3600 * hours
        self.paid: list[tuple[str, float, float, float]] = []  # nodes left: when, cost of all spells, and the price

    def cost(self) -> float:
        """Return what all spells have cost so far: slow iterations, and moved micro-batches."""
        return sum(month.lost_seconds + MOVE_SECONDS * month.moves for month in self.months)

    def _count(self, before: RecoveryState, commands: list[Command], obs: Observation) -> None:
        for switch in (command for command in commands if isinstance(command, Switch)):
            node = obs.members[switch.replica].node
            slow = next(slow for slow in before.slowdowns if slow.culprit is not None and slow.culprit.node == node)
            acted = newest(slow, replace_node.TYPE)
            assert acted is not None
            self.paid.append((node, self.now, self.cost(), acted.overhead_seconds))
        super()._count(before, commands, obs)


def spells(nodes: int, seed: int, *, on: float, every: float, factor: float) -> list[SlowFault]:
    """Return a day of spells of nodes in turn; ``every``: from one to the next on the same node [s], about."""
    chance, at, drawn = random.Random(seed), BEGIN, list[SlowFault]()
    while at < 86_400:
        lasts, node = on * chance.uniform(0.7, 1.3), 1 + len(drawn) % nodes
        drawn.append(SlowFault(at_seconds=at, duration_seconds=lasts, factor=factor, node=node))
        at += lasts + (every / nodes - on) * chance.uniform(0.7, 1.3)
    return drawn


def lived(monkeypatch: pytest.MonkeyPatch, name: str, slow: list[SlowFault], hours: float) -> Flapping:
    monkeypatch.setattr(faults, "drawn", lambda *_: (slow, []))
    monkeypatch.setattr(faults, "shared", lambda *_: [])
    life = Flapping(name, hours)
    life.run()
    return life


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("name", "on", "factor"),
    [
        ("plain", 20.0, 3.2),
        ("tensor", 40.0, 3.2),
        ("tensor", 90.0, 1.5),
        ("iterations of 0.4 s", 20.0, 2.2),
        ("garbage collection", 45.0, 1.6),
        ("unequal ranks", 45.0, 3.2),
    ],
)
def test_a_node_that_flaps_is_left_at_its_fourth_spell_or_before_twice_the_price(
    monkeypatch: pytest.MonkeyPatch, name: str, on: float, factor: float, nodes: int
) -> None:
    slow = spells(nodes, 7, on=on, every=1200.0, factor=factor)
    life = lived(monkeypatch, name, slow, hours=2.0)
    assert {node for node, *_ in life.paid} == {f"node-{1 + number}" for number in range(nodes)}
    for node, at, cost, price in life.paid:
        begun = sum(fault.at_seconds < at and f"node-{fault.node}" == node for fault in slow)
        assert begun <= 4 or cost <= 2 * price
    assert sum(month.healthy_evicted for month in life.months) == 0
