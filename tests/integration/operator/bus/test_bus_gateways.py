"""The bus and its gateways: lost ones, restarted ones, and those that start while etcd is away."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import msgspec

from tests.integration.gateway.gateways import BERT, GPT, Job
from tests.integration.operator.bench import PLAN, POD, Bench, has_plan, report, sees
from tests.integration.operator.cluster import until_async
from tests.unit.operator.one_lease import epochs_around_a_restore


async def test_agents_of_a_lost_gateway_are_unknown_until_they_reach_another(bench: Bench) -> None:
    lost, other = bench.gateway(), bench.gateway()
    session = await bench.serving(GPT, streams=2)
    stays = GPT.pod(1).pod_uid
    async with bench.agent(GPT, 0, lost), bench.agent(GPT, 1, other):
        await until_async(lambda: session.reports().alive == {POD, stays})
        await lost.end(signal.SIGKILL)
        await until_async(lambda: session.bus.gateways == {other.name})
        assert session.reports().alive == {stays}
        assert session.reports().gone_since_seconds == {}
        async with bench.agent(GPT, 0, other):
            await until_async(lambda: session.reports().alive == {POD, stays})
        assert session.reports().session_healthy_since_seconds is not None


async def test_a_gateway_that_restarts_vouches_for_nobody_that_has_not_come_back(bench: Bench) -> None:
    gateway = bench.gateway()
    session = await bench.serving(GPT)
    async with bench.agent(GPT, 0):
        await until_async(lambda: session.reports().alive == {POD})
    # the agent is gone, too, before anybody has seen its silence
    await gateway.end(signal.SIGKILL)
    gateway.start()
    await until_async(lambda: not session.reports().alive)
    await session.healthy(streams=1)
    assert session.reports().gone_since_seconds == {}
    async with bench.agent(GPT, 0):
        await until_async(lambda: session.reports().alive == {POD})


async def test_a_new_leader_forgets_no_job_before_it_has_looked_at_all(bench: Bench) -> None:
    gateway = bench.gateway()
    first = await bench.serving(GPT, BERT)
    async with bench.agent(GPT, 0) as agent, bench.agent(BERT, 0) as other:
        await agent.connected()
        await other.connected()
        await first.stop()
        second = await bench.session(epoch=2, identity="op-b")
        await second.healthy(streams=1)
        await until_async(lambda: POD in second.reports().alive)
        second.announce(GPT)
        second.bus.all_announced({GPT.uid})
        await gateway.counted("refused_total", reason="unknown_job")
        assert agent.client.gateway == gateway.name
        await until_async(lambda: not other.client.gateway)


async def test_a_job_that_no_look_can_announce_keeps_its_agents_and_the_others_are_forgotten(bench: Bench) -> None:
    gateway = bench.gateway()
    first = await bench.session()
    await first.healthy(streams=1)
    deleted = Job("deleted", "33333333-3333-4333-8333-333333333333")
    first.announce(GPT, BERT, deleted)
    async with bench.agent(BERT, 0) as unread, bench.agent(deleted, 0) as left:
        await unread.connected()
        await left.connected()
        await first.stop()
        second = await bench.session(epoch=2, identity="op-b")
        await second.healthy(streams=1)
        second.announce(GPT)
        second.bus.all_announced({GPT.uid, BERT.uid})
        await until_async(lambda: not left.client.gateway)
        unread.client.report(report(1, BERT.pod(0).pod_uid))
        await sees(second, 1, BERT)
        assert unread.client.gateway == gateway.name


async def test_operator_and_gateways_that_start_while_etcd_is_away_find_each_other(bench: Bench) -> None:
    bench.etcd.kill()
    gateways = bench.gateway(), bench.gateway()
    session = await bench.session()
    session.names(*gateways, ready=False)  # they wait for announcements
    await until_async(lambda: len(session.bus.streams) == 2)
    session.announce(GPT)
    session.bus.all_announced({GPT.uid})
    for gateway in gateways:
        await gateway.ready()
    session.names(*gateways)
    await until_async(lambda: session.bus.healthy)
    await session.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        await has_plan(agent, epoch=1)
        agent.client.report(report(1), urgent=True)
        await sees(session, 1)
        await until_async(lambda: session.reports().alive == {POD})
    await until_async(lambda: POD in session.reports().gone_since_seconds)
    assert not session.bus.etcd_healthy


async def test_a_gateway_that_dies_while_etcd_is_away_is_waited_for_until_its_pod_is_not_ready(bench: Bench) -> None:
    lost, other = bench.gateway(), bench.gateway()
    session = await bench.session()
    session.names(lost, other)
    await session.healthy(streams=2)
    bench.etcd.kill()
    await until_async(lambda: not session.bus.etcd_healthy)
    await lost.end(signal.SIGKILL)
    await until_async(lambda: not session.bus.healthy)
    session.names(other)
    await until_async(lambda: session.bus.healthy)
    assert session.bus.gateways == {other.name}


async def test_a_gateway_that_restarts_while_etcd_is_away_says_so_itself(bench: Bench) -> None:
    gateway = bench.gateway()
    session = await bench.serving(GPT)
    async with bench.agent(GPT, 0):
        await until_async(lambda: session.reports().alive == {POD})
        bench.etcd.kill()
        await until_async(lambda: not session.bus.etcd_healthy)
    # the agent is gone, too, before anybody has seen its silence
    await gateway.end(signal.SIGKILL)
    await until_async(lambda: not session.bus.streams)
    gateway.start()
    await until_async(lambda: session.bus.streams)
    await until_async(lambda: not session.reports().alive)
    assert session.reports().gone_since_seconds == {}


async def test_an_operator_that_reaches_no_gateway_says_so(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    assert any(note.startswith("NoGateway") for note in session.bus.state.notes)
    bench.gateway()
    await until_async(lambda: not session.bus.state.notes)


async def test_a_cluster_that_was_restored_to_yesterday_is_followed_and_its_earlier_leader_is_not(
    bench: Bench, tmp_path: Path
) -> None:
    """The Lease and etcd go back; the gateway, the agent and a leader that was deposed live on."""
    before, after = await epochs_around_a_restore()
    [member] = bench.etcd.members
    first = await bench.session(epoch=before - 3)
    await first.healthy()
    await first.stop()
    bench.etcd.stop()
    shutil.copytree(member.data, tmp_path / "yesterday")
    bench.etcd.start()
    bench.gateway()
    former = await bench.session(epoch=before, holds_lease=False)
    await former.healthy(streams=1)
    former.announce(GPT)
    await former.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        await has_plan(agent, epoch=before)
        bench.etcd.kill()
        shutil.rmtree(member.data)
        shutil.copytree(tmp_path / "yesterday", member.data)
        bench.etcd.start()
        restored = await bench.session(epoch=after, identity="op-b")
        await restored.healthy(streams=1)
        restored.announce(GPT)
        await restored.bus.publish_plan(GPT.key, PLAN)
        await has_plan(agent, epoch=after)
        agent.client.report(report(2), urgent=True)
        await sees(restored, 2)
        former.bus.announce(GPT.key, frozenset(), 1)
        await until_async(former.task.done)  # it cannot get the leader key back without the Lease
        await restored.bus.publish_plan(GPT.key, msgspec.structs.replace(PLAN, generation=2))
        await has_plan(agent, epoch=after, generation=2)
        assert restored.leadership.epoch == after
