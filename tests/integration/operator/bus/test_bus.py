"""The bus on a real etcd and real gateways: both ways of reports and plans, and ex-leaders."""

from __future__ import annotations

import signal

import msgspec
import pytest

from falcon_core.wire.measurement.probe import ProbeOrder
from falcon_core.wire.reporting.messages import DetailRequest
from falcon_core.wire.reporting.microbatches import MicrobatchOrder
from falcon_gateway import Publish
from falcon_operator.base.ports import LeadershipLost
from falcon_operator.bus.leader_key import BusUnavailable
from tests.integration.gateway.gateways import GPT, eventually
from tests.integration.operator.bench import PLAN, POD, Bench, has_plan, report, sees
from tests.integration.operator.cluster import until_async

NOWHERE = "127.0.0.9"  # no process listens there


# -- both ways ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "etcd-alone"])
async def test_reports_come_and_plans_go_by_either_way(bench: Bench, streams: bool) -> None:
    gateway = bench.gateway(**({} if streams else {"FALCON_POD_IP": NOWHERE}))
    session = await bench.session()
    await session.healthy(streams=int(streams))
    await until_async(lambda: session.bus.gateways == {gateway.name})
    session.announce(GPT)
    await session.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        await has_plan(agent, epoch=1)
        await until_async(lambda: POD in session.reports().alive)
        agent.client.report(report(1))
        await sees(session, 1)
        assert GPT.key in session.changed
        await session.bus.publish_plan(GPT.key, msgspec.structs.replace(PLAN, generation=2))
        await has_plan(agent, epoch=1, generation=2)
    await until_async(lambda: POD in session.reports().gone_since_seconds)
    assert POD not in session.reports().alive
    assert session.bus.streams == ({gateway.name} if streams else frozenset())


async def test_a_restart_of_processes_needs_no_etcd(bench: Bench) -> None:
    for _ in range(2):
        bench.gateway()
    session = await bench.serving(GPT, streams=2)
    await session.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        agent.client.report(report(1))
        await sees(session, 1)
        bench.etcd.kill()
        await until_async(lambda: not session.bus.etcd_healthy)
        agent.client.report(report(2), urgent=True)
        await sees(session, 2)
        assert session.bus.healthy
        assert session.reports().session_healthy_since_seconds is not None
        await session.bus.publish_plan(GPT.key, msgspec.structs.replace(PLAN, generation=2))
        await has_plan(agent, epoch=1, generation=2)
        bench.etcd.start()
        await session.healthy()

        async def written() -> bool:
            kv = await session.client.get(GPT.key.plan)
            return kv is not None and b'"generation":2' in Publish.FromString(kv.value).payload

        await eventually(written)


async def test_a_plan_that_passes_neither_way_is_refused_and_nothing_counts_as_known(bench: Bench) -> None:
    gateway = bench.gateway()
    session = await bench.serving(GPT)
    async with bench.agent(GPT, 0):
        await until_async(lambda: POD in session.reports().alive)
        bench.etcd.kill()
        await gateway.end(signal.SIGKILL)
        await until_async(lambda: not session.bus.healthy)
        assert session.reports().session_healthy_since_seconds is None
        with pytest.raises(BusUnavailable):
            await session.bus.publish_plan(GPT.key, PLAN)


async def test_a_request_for_detail_is_published_when_it_changes(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    session.announce(GPT)
    await session.bus.ask_detail(GPT.key, 1, [])
    assert await session.client.get(GPT.key.detail) is None, "no agent has been asked, and none is"
    for ranks in ([3, 5], []):
        await session.bus.ask_detail(GPT.key, 1, ranks)
        kv = await session.client.get(GPT.key.detail)
        assert kv is not None
        payload = Publish.FromString(kv.value).payload
        assert msgspec.json.decode(payload, type=DetailRequest) == DetailRequest(epoch=1, generation=1, ranks=ranks)
        await session.bus.ask_detail(GPT.key, 1, ranks)
        again = await session.client.get(GPT.key.detail)
        assert again is not None
        assert again.value == kv.value, "the same request is no news: it keeps its revision"


async def test_an_order_of_micro_batches_is_published_when_it_changes(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    session.announce(GPT)
    for shares in ([5, 5, 2], [4, 4, 4]):
        await session.bus.order_microbatches(GPT.key, 1, shares)
        kv = await session.client.get(GPT.key.microbatches)
        assert kv is not None
        payload = Publish.FromString(kv.value).payload
        order = MicrobatchOrder(epoch=1, generation=1, shares=shares)
        assert msgspec.json.decode(payload, type=MicrobatchOrder) == order
        await session.bus.order_microbatches(GPT.key, 1, shares)
        again = await session.client.get(GPT.key.microbatches)
        assert again is not None
        assert again.value == kv.value, "the same order is no news: it keeps its revision"


async def test_a_probe_is_ordered_under_the_leaders_epoch_when_it_changes(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    session.announce(GPT)
    for phase in ("Prepare", "Release"):
        order = ProbeOrder(epoch=0, generation=1, number=4, phase=phase)
        await session.bus.order_probe(GPT.key, order)
        kv = await session.client.get(GPT.key.probe)
        assert kv is not None
        payload = Publish.FromString(kv.value).payload
        assert msgspec.json.decode(payload, type=ProbeOrder) == msgspec.structs.replace(order, epoch=1)
        await session.bus.order_probe(GPT.key, order)
        again = await session.client.get(GPT.key.probe)
        assert again is not None
        assert again.value == kv.value, "the same order is no news: it keeps its revision"


async def test_a_gateway_with_an_ipv6_address_is_reached(bench: Bench) -> None:
    gateway = bench.gateway("::1")
    session = await bench.session()
    await session.healthy(streams=1)
    assert session.bus.streams == {gateway.name}


# -- leaders -----------------------------------------------------------------------------------------------------------


async def test_a_stalled_ex_leader_can_command_nothing(bench: Bench) -> None:
    bench.gateway()
    old = await bench.session(epoch=1, identity="op-a", holds_lease=False)
    await old.healthy(streams=1)
    new = await bench.session(epoch=2, identity="op-b")
    await new.healthy(streams=1)
    new.announce(GPT)
    await new.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        await has_plan(agent, epoch=2)
        await until_async(lambda: not old.bus.streams)
        with pytest.raises(BusUnavailable):
            await old.bus.publish_plan(GPT.key, msgspec.structs.replace(PLAN, generation=9))
        await until_async(old.task.done)
        with pytest.raises(ExceptionGroup) as caught:
            old.task.result()
        assert caught.group_contains(LeadershipLost)
        assert not new.task.done()
        await new.bus.publish_plan(GPT.key, msgspec.structs.replace(PLAN, generation=2))
        await has_plan(agent, epoch=2, generation=2)
        assert all(b'"generation":9' not in command for command in agent.commands)


async def test_a_deleted_lease_begins_at_zero_and_its_holder_leads_all_the_same(bench: Bench) -> None:
    bench.gateway()
    first = await bench.session(epoch=40)
    await first.healthy(streams=1)
    first.announce(GPT)
    await first.bus.publish_plan(GPT.key, PLAN)
    await first.stop()
    second = await bench.session(epoch=1, identity="op-b")
    second.announce(GPT)
    await second.healthy(streams=1)
    assert second.leadership.epoch == 41
    await second.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        await has_plan(agent, epoch=41)
