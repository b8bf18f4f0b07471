"""How often the node's conditions are written, however often they change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from falcon_agent.node.api import NodeCondition
from falcon_agent.node.conditions import BUSY_SECONDS, Keeper
from falcon_agent.node.problems import GPU, Condition, Problems, Seen
from falcon_core.errors.judge import shipped_judge
from falcon_core.model import CPU_BUSY_CONDITION

T = 1_700_000_000.0


class Node:
    """The node at the API server."""

    def __init__(self) -> None:
        self.stored: dict[str, NodeCondition] = {}
        self.calls = 0

    def conditions(self) -> dict[str, NodeCondition]:
        self.calls += 1
        return dict(self.stored)

    def write(self, conditions: list[dict[str, Any]]) -> None:
        self.calls += 1
        for body in conditions:
            fields = {key: body[key] for key in ("type", "status", "reason", "message")}
            self.stored[body["type"]] = NodeCondition(**fields)


def test_two_pods_that_take_turns_change_the_condition_twice_a_minute_and_a_problem_waits_for_none_of_it() -> None:
    node, problems = Node(), Problems(shipped_judge(), "boot")
    busy: Any = SimpleNamespace(condition=Condition(holds=False, reason="IdleCores"))
    keeper = Keeper(node, problems, busy)
    keeper.keep(T)
    before = node.calls
    for second in range(1, 121):
        holds = second // 5 % 2 == 0
        busy.condition = Condition(holds=holds, reason="BusyCores" if holds else "IdleCores", message=f"pod {holds}")
        keeper.keep(T + second)
    changes, rest = divmod(node.calls - before, 2)
    assert (changes <= 120 / BUSY_SECONDS, rest) == (True, 0)
    assert changes >= 2
    busy.condition = Condition(holds=node.stored[CPU_BUSY_CONDITION].status != "True", reason="Other")
    problems.see([Seen("GpuLost", "fell off the bus", T + 121)])
    keeper.keep(T + 121)
    assert node.stored[GPU].status == "True"
