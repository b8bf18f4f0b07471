"""A pod whose role has changed: what its ranks saved before is forgotten, and never what they save now."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from falcon_agent.agent import Agent
from falcon_agent.checkpoint.store import Store
from falcon_core.wire.agent_config import AgentConfig
from falcon_core.wire.launcher.launch import PLAN_FILE, STATUS_FILE, LaunchRank, LaunchStatus
from falcon_core.wire.reporting.messages import Plan, PlanMember
from tests.unit.agent.checkpoint.test_store import commit, written
from tests.unit.agent.test_settings import POD, environ, good, load

__all__ = ["good"]  # a fixture
MIB = 1 << 20
PLAN = Plan(
    epoch=1,
    generation=2,
    phase="Run",
    procs_per_replica=1,
    world_size=4,
    master_addr="10.0.0.1",
    master_port=20_000,
    members=[PlanMember(replica=3, pod_uid=POD["FALCON_POD_UID"], pod_name="gpt2-1", node="node-b", first_rank=3)],
)


def status(state: Literal["Running", "Stopped"], rank: int) -> LaunchStatus:
    """Return what a launcher says of generation 2; one that has stopped for it still lists the rank of before."""
    process = LaunchRank(local_rank=0, rank=rank, pid=7, state="Exited", signal=15, started_unix_ns=1)
    return LaunchStatus(generation=2, dead_below=2, state=state, ranks=[process])


@pytest.mark.parametrize(
    ("said", "held"),
    [(status("Stopped", 1), []), (status("Running", 3), [1])],
    ids=["before it starts", "while it runs"],
)
def test_what_another_rank_saved_is_forgotten_before_the_ranks_start(
    good: AgentConfig, tmp_path: Path, said: LaunchStatus, held: list[int]
) -> None:
    run_dir, folder = tmp_path / "run", tmp_path / "checkpoints"
    for path in (run_dir / "agent", run_dir / "launch", folder):
        path.mkdir(parents=True)
    store = Store(folder, ranks=1, memory_bytes=16 * MIB)
    store.make()
    written(folder / "rank-0.0", commit(99, rank=1))
    (run_dir / STATUS_FILE).write_bytes(msgspec.json.encode(said))
    config = msgspec.structs.replace(good, run_dir=str(run_dir), checkpoint_dir=str(folder), checkpoint_bytes=16 * MIB)
    agent = Agent(load(environ(config)))
    agent.take_plan(PLAN)
    agent._store_made = True  # its loop does not run
    agent._write_plan(PLAN)
    assert [each.rank for each in store.held()] == held
    assert "first_rank=3\n" in (run_dir / PLAN_FILE).read_text()
