"""What a job's owner reads when no agent can report."""

from __future__ import annotations

import msgspec
import pytest

from falcon_operator.base.ports import JobReports, OtherJobs
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


async def test_a_job_whose_namespace_lets_no_agent_out_learns_what_its_pods_have_to_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    with monkeypatch.context() as cut:
        cut.setattr(world.bus, "reports", lambda _: JobReports(session_healthy_since_seconds=0.0))
        await run(world, operator, lambda w: w.clock.seconds >= 50)
        assert condition(world.status, "AgentsCutOff") == "", "a pod may start slowly"
        await run(world, operator, lambda w: condition(w.status, "AgentsCutOff") == "True", seconds=60)
    [found] = [each for each in world.status.conditions if each.type == "AgentsCutOff"]
    assert found.reason == "NeverHeard"
    assert "port 7443 of the gateways, DNS and each other" in found.message
    await run(world, operator, lambda w: condition(w.status, "AgentsCutOff") != "True")


async def test_no_policy_is_suspected_while_the_operator_itself_hears_no_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    monkeypatch.setattr(world.bus, "reports", lambda _: JobReports(session_healthy_since_seconds=None))
    await run(world, operator, lambda w: w.clock.seconds >= 90, seconds=120)
    assert condition(world.status, "AgentsCutOff") == ""


async def test_no_policy_is_suspected_while_all_jobs_are_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    deaf = JobReports(session_healthy_since_seconds=0.0, others=OtherJobs(silent=4))
    monkeypatch.setattr(world.bus, "reports", lambda _: deaf)
    await run(world, operator, lambda w: condition(w.status, "AgentsCutOff") != "", seconds=120)
    [found] = [each for each in world.status.conditions if each.type == "AgentsCutOff"]
    assert (found.status, found.reason) == ("Unknown", "AllJobs")
