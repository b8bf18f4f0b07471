"""Whose words an agent follows: those of the highest epoch, which the leader of a restored cluster has, too."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from falcon_agent.agent import Agent
from falcon_agent.checkpoint.replication import Copying
from falcon_agent.checkpoint.store import Store
from falcon_core.wire.agent_config import AgentConfig
from falcon_core.wire.launcher.imports import Imports, pack
from falcon_core.wire.launcher.launch import PLAN_FILE
from falcon_core.wire.reporting.messages import DetailRequest, Plan
from falcon_core.wire.reporting.microbatches import MicrobatchOrder
from falcon_core.wire.saves.peers import Peers
from tests.unit.agent.checkpoint.test_exchanged_roles import MIB, PLAN
from tests.unit.agent.test_settings import environ, good, load
from tests.unit.operator.one_lease import epochs_around_a_restore

__all__ = ["good"]  # a fixture


@pytest.fixture
def config(good: AgentConfig, tmp_path: Path) -> AgentConfig:
    for folder in ("agent", "launch", "checkpoints"):
        (tmp_path / folder).mkdir()
    return msgspec.structs.replace(
        good,
        run_dir=str(tmp_path),
        checkpoint_dir=str(tmp_path / "checkpoints"),
        checkpoint_bytes=16 * MIB,
        copies_dir=str(tmp_path / "copies"),
        copies_bytes=16 * MIB,
    )


@pytest.fixture
def agent(config: AgentConfig) -> Agent:
    return Agent(load(environ(msgspec.structs.replace(config, checkpoint_bytes=0, copies_bytes=0))))


async def test_an_agent_follows_the_plan_of_a_restored_cluster(agent: Agent, tmp_path: Path) -> None:
    before, after = await epochs_around_a_restore()

    def plan(epoch: int, port: int) -> Plan:
        return msgspec.structs.replace(PLAN, epoch=epoch, master_port=port)

    agent.take_plan(plan(before, 20000))
    agent.take_plan(plan(after, 20001))
    assert "master_port=20001\n" in (tmp_path / PLAN_FILE).read_text()
    agent.take_plan(plan(before, 20002))
    assert "master_port=20001\n" in (tmp_path / PLAN_FILE).read_text(), "of a leader that was deposed"


async def test_an_agent_answers_the_requests_of_a_restored_cluster(agent: Agent) -> None:
    before, after = await epochs_around_a_restore()
    former, living = (DetailRequest(epoch=epoch, generation=1, ranks=[0]) for epoch in (before, after))
    for request in (former, living, former):
        agent.take_request(request)
    assert agent._request == living


async def test_an_agent_shares_out_micro_batches_as_a_restored_cluster_says(agent: Agent) -> None:
    before, after = await epochs_around_a_restore()
    former, living = (MicrobatchOrder(epoch=epoch, generation=1, shares=[1, 1]) for epoch in (before, after))
    for order in (former, living, former):
        agent.take_order(order)
    assert agent._order == living


async def test_a_standby_imports_what_a_restored_cluster_hands_to_it(agent: Agent) -> None:
    before, after = await epochs_around_a_restore()
    assert agent._imports.take(Imports(epoch=before, packed=pack(b"json")))
    assert agent._imports.take(Imports(epoch=after, packed=pack(b"json\ncsv")))
    assert not agent._imports.take(Imports(epoch=before, packed=pack(b"json")))


async def test_copies_go_where_a_restored_cluster_says(config: AgentConfig, tmp_path: Path) -> None:
    before, after = await epochs_around_a_restore()
    former, living = (Peers(epoch=epoch, generation=2, phase="Run", procs=1, pods=[]) for epoch in (before, after))
    store = Store(tmp_path / "checkpoints", ranks=1, memory_bytes=16 * MIB)
    copying = Copying(store, config, pod_uid="a", on_copied=lambda _on, _copied, _sent: None)
    for peers in (former, living, former):
        copying.take(peers)
    assert copying._peers == living
