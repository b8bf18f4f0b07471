"""What a job's owner reads when no agent can report."""

from __future__ import annotations

import msgspec
import pytest

from falcon_operator.base.ports import JobReports
from falcon_operator.job.reconciler import JobReconciler
from tests.world.running import Settings, condition, operator, run
from tests.world.world import World


class _Guarded(Settings):
    """The gateways' NetworkPolicy is on, and admits no pods on the host's network."""

    pods = msgspec.structs.replace(Settings.pods, host_network_admitted=False)


@pytest.mark.parametrize("settings", [_Guarded, Settings], ids=["guarded", "admitted"])
@pytest.mark.parametrize("on_host", [True, False], ids=["host-network", "pod-network"])
async def test_a_job_on_the_hosts_network_learns_why_no_agent_reports(
    monkeypatch: pytest.MonkeyPatch, settings: type[Settings], on_host: bool
) -> None:
    pod = {"containers": [{"name": "trainer", "image": "x", "command": ["python", "t.py"]}], "hostNetwork": on_host}
    world = World(spec={"template": {"spec": {**pod, "dnsPolicy": "ClusterFirstWithHostNet"}}})

    def guarded(world: World) -> JobReconciler:
        return operator(world, settings=settings())

    with monkeypatch.context() as cut:
        cut.setattr(world.bus, "reports", lambda _: JobReports(session_healthy_since_seconds=0.0))
        await run(world, guarded, lambda w: w.clock.seconds >= 20)
    assert world.pods
    assert condition(world.status, "AgentsCutOff") == ("True" if on_host and settings is _Guarded else "")
    await run(world, guarded, lambda w: condition(w.status, "AgentsCutOff") != "True")
