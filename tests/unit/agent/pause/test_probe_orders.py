"""An agent and the orders of probes: of an order and its plan, either may come first."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from falcon_agent.agent import Agent
from falcon_core.wire.agent_config import AgentConfig
from falcon_core.wire.launcher.launch import PLAN_FILE
from falcon_core.wire.measurement.probe import ProbeOrder
from tests.unit.agent.checkpoint.test_exchanged_roles import PLAN
from tests.unit.agent.test_settings import environ, good, load

__all__ = ["good"]  # a fixture
ORDER = ProbeOrder(epoch=1, generation=PLAN.generation, number=7, phase="Prepare")


@pytest.fixture
def agent(good: AgentConfig, tmp_path: Path) -> Agent:
    (tmp_path / "agent").mkdir()
    (tmp_path / "launch").mkdir()
    return Agent(load(environ(msgspec.structs.replace(good, run_dir=str(tmp_path)))))


def probe_wanted(folder: Path) -> bool:
    """Return whether the launcher is ordered to start the executor of ORDER."""
    return f"links={ORDER.number}\n" in (folder / PLAN_FILE).read_text()


def test_an_order_that_comes_before_its_plan_is_carried_out_with_it(agent: Agent, tmp_path: Path) -> None:
    agent.take_probe(ORDER)
    agent.take_plan(PLAN)
    assert probe_wanted(tmp_path)


def test_an_order_that_comes_after_its_plan_is_carried_out(agent: Agent, tmp_path: Path) -> None:
    agent.take_plan(PLAN)
    agent.take_probe(ORDER)
    assert probe_wanted(tmp_path)


def test_an_order_of_the_next_generation_waits_for_its_plan(agent: Agent, tmp_path: Path) -> None:
    agent.take_plan(msgspec.structs.replace(PLAN, generation=ORDER.generation - 1))
    agent.take_probe(ORDER)
    assert not probe_wanted(tmp_path)
    agent.take_plan(PLAN)
    assert probe_wanted(tmp_path)
