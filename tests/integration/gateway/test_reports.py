"""Reports and liveness, from a real agent's stream to etcd and to the operator."""

from __future__ import annotations

import asyncio
import signal

from falcon_core.wire.keys import GATEWAYS, REPORTS
from tests.integration.gateway.gateways import BERT, GPT, Site, eventually
from tests.integration.operator.cluster import until_async


async def test_a_report_reaches_etcd_and_the_operator_in_the_same_bytes(site: Site) -> None:
    gateway = site.gateway()
    async with site.client() as etcd, site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent:
        agent.client.report(b"well")
        entry = await operator.sees(GPT, 0, b"well")
        await site.stores(etcd, GPT, 0, b"well")
        assert (entry.gateway, entry.sequence, entry.silent_ms) == (gateway.name, 1, 0)
        sent = {batch.SerializeToString() for batch in operator.batches}
        values = {kv.value for kv in (await etcd.get_prefix(REPORTS)).kvs}
        assert values <= sent
        assert len(values) == 1


async def test_a_command_reaches_the_agents_of_its_job_alone(site: Site) -> None:
    gateway = site.gateway()
    async with (
        site.leader(gateway, GPT, BERT) as operator,
        site.agent(GPT, 0) as first,
        site.agent(GPT, 1) as second,
        site.agent(BERT, 0) as foreign,
    ):
        for agent in (first, second, foreign):
            await agent.connected()
        operator.desired.publish(GPT.plan(b"plan 1"))
        await until_async(lambda: first.commands == second.commands == [b"plan 1"])
        operator.desired.publish(GPT.plan(b"plan 2"))
        await until_async(lambda: first.commands == second.commands == [b"plan 1", b"plan 2"])
        async with site.agent(GPT, 2) as late:
            await until_async(lambda: late.commands == [b"plan 2"])
        operator.desired.publish(BERT.plan(b"plan 3"))
        await until_async(lambda: foreign.commands == [b"plan 3"])


async def test_without_an_operator_announcements_and_commands_come_from_etcd(site: Site) -> None:
    async with site.client() as etcd:
        await etcd.put(f"{GPT.prefix}announce", GPT.announcement().SerializeToString())
        await etcd.put(f"{GPT.prefix}commands/plan", GPT.plan(b"before").SerializeToString())
        gateway = site.gateway()
        async with site.agent(GPT, 0) as agent:
            agent.client.report(b"well")
            await until_async(lambda: agent.commands == [b"before"])
            await site.stores(etcd, GPT, 0, b"well")
            assert (await etcd.get(f"{GATEWAYS}{gateway.name}")) is not None
            await etcd.put(f"{GPT.prefix}commands/plan", GPT.plan(b"after").SerializeToString())
            await until_async(lambda: agent.commands == [b"before", b"after"])
            await etcd.delete(f"{GPT.prefix}announce")
            await until_async(lambda: not agent.client.gateway)

            async def nothing_is_left() -> bool:
                return not (await etcd.get_prefix(REPORTS)).kvs

            await eventually(nothing_is_left)


async def test_an_operator_that_comes_later_gets_all_that_is_held(site: Site) -> None:
    gateway = site.gateway()
    async with site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent:
        agent.client.report(b"well")
        await operator.sees(GPT, 0, b"well")
        async with site.leader(gateway, GPT, epoch=2) as successor:
            await until_async(lambda: successor.client.complete)
            await successor.sees(GPT, 0, b"well")


async def test_a_job_that_the_operator_no_longer_announces_is_withdrawn(site: Site) -> None:
    gateway = site.gateway()
    async with site.leader(gateway, GPT, BERT) as operator, site.agent(GPT, 0) as agent, site.agent(BERT, 0) as other:
        agent.client.report(b"well")
        await agent.connected()
        await other.connected()
        operator.desired.withdraw(BERT.uid)
        await until_async(lambda: not other.client.gateway)
        async with site.leader(gateway, epoch=2):
            await until_async(lambda: not agent.client.gateway)


async def test_an_agent_that_falls_silent_is_lost_and_one_that_comes_back_lives(site: Site) -> None:
    gateway = site.gateway()
    async with site.client() as etcd, site.leader(gateway, GPT) as operator, site.agent(GPT, 1) as other:
        other.client.report(b"other")
        async with site.agent(GPT, 0) as agent:
            agent.client.report(b"last words")
            await operator.sees(GPT, 0, b"last words")
        lost = await operator.sees(GPT, 0, b"last words", alive=False)
        assert lost.silent_ms > 2000
        await site.stores(etcd, GPT, 0, b"last words", alive=False)
        await operator.sees(GPT, 1, b"other")
        async with site.agent(GPT, 0) as agent:
            agent.client.report(b"back")
            await operator.sees(GPT, 0, b"back")


async def test_an_agent_that_moves_to_another_gateway_lives_there(site: Site) -> None:
    first, second = site.gateway(), site.gateway()
    async with site.client() as etcd, site.leader(first, GPT) as here, site.leader(second, GPT) as there:
        async with site.agent(GPT, 0, first) as agent:
            agent.client.report(b"here")
            await here.sees(GPT, 0, b"here")
        async with site.agent(GPT, 0, second) as agent:
            agent.client.report(b"there")
            await there.sees(GPT, 0, b"there")
            await here.sees(GPT, 0, b"here", alive=False)
            await site.stores(etcd, GPT, 0, b"there")  # merged from both gateways: the newer session holds
            await site.stores(etcd, GPT, 0, b"there")


async def test_a_gateway_that_ends_sends_its_agents_to_another_and_calls_none_lost(site: Site) -> None:
    first = site.gateway()
    async with site.client() as etcd, site.leader(first, GPT) as operator:
        async with site.agent(GPT, 0, first) as agent:
            agent.client.report(b"well")
            await operator.sees(GPT, 0, b"well")
            second = site.gateway()
            async with site.leader(second, GPT) as there, site.agent(GPT, 1, first, second) as mover:
                mover.client.report(b"moving")
                await mover.acknowledged()
                assert await first.end() == 0
                await mover.connected(second.name)
                await there.sees(GPT, 1, b"moving")
        assert all(entry.alive for batch in operator.batches for entry in batch.entries)
        assert await etcd.get(f"{GATEWAYS}{first.name}") is None
        assert (await site.stored(etcd, GPT)).pods[GPT.pod(0).pod_uid].alive


async def test_a_gateway_that_is_killed_is_made_whole_by_its_agents(site: Site) -> None:
    gateway = site.gateway()
    async with site.client() as etcd, site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent:
        async with site.agent(GPT, 1) as leaving:
            leaving.client.report(b"leaving")
            await site.stores(etcd, GPT, 1, b"leaving")
        agent.client.report(b"well")
        await site.stores(etcd, GPT, 0, b"well")
        before = operator.entry(GPT, 0)
        assert before is not None
        await gateway.end(signal.SIGKILL)
        gateway.start()
        await until_async(lambda: (now := operator.entry(GPT, 0)) is not None and now.session > before.session)
        await operator.sees(GPT, 0, b"well")
        await site.stores(etcd, GPT, 0, b"well")

        # what the process before it had written is gone: nothing is known of the pod that left meanwhile
        async def forgotten() -> bool:
            return GPT.pod(1).pod_uid not in (await site.stored(etcd, GPT)).pods

        await eventually(forgotten)


async def test_a_gateway_that_stood_still_lets_agents_come_back_before_it_judges(site: Site) -> None:
    gateway = site.gateway()
    async with site.leader(gateway, GPT) as operator:
        async with site.agent(GPT, 0) as agent:
            agent.client.report(b"well")
            await operator.sees(GPT, 0, b"well")
            await asyncio.sleep(3)  # it judges from now on
            gateway.send(signal.SIGSTOP)
        await asyncio.sleep(4)  # the agent gave up its stream meanwhile
        gateway.send(signal.SIGCONT)
        await asyncio.sleep(0.6)  # two judgements are due in this time, if it judged
        async with site.agent(GPT, 0) as agent:
            agent.client.report(b"after")
            await operator.sees(GPT, 0, b"after")
            assert await gateway.counter("agents_lost_total") == 0


async def test_while_etcd_is_away_the_operators_stream_goes_on_and_then_etcd_catches_up(site: Site) -> None:
    gateway = site.gateway()
    async with site.client() as etcd, site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent:
        agent.client.report(b"before")
        await site.stores(etcd, GPT, 0, b"before")
        site.etcd.kill()
        agent.client.report(b"without etcd", urgent=True)
        await operator.sees(GPT, 0, b"without etcd")
        operator.desired.publish(GPT.plan(b"plan"))
        await until_async(lambda: agent.commands == [b"plan"])
        site.etcd.start()
        await site.stores(etcd, GPT, 0, b"without etcd")


async def test_an_etcd_that_lost_its_data_is_filled_again(site: Site) -> None:
    gateway = site.gateway()
    async with site.client() as etcd, site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent:
        agent.client.report(b"well")
        await operator.sees(GPT, 0, b"well")
        await site.stores(etcd, GPT, 0, b"well")
        site.etcd.wipe()
        site.etcd.start()
        await site.stores(etcd, GPT, 0, b"well")
        assert agent.client.gateway == gateway.name
        await eventually(lambda: etcd.get(f"{GATEWAYS}{gateway.name}"))


async def test_with_etcd_and_operator_away_nobody_is_called_lost(site: Site) -> None:
    gateway = site.gateway()
    async with site.agent(GPT, 0) as staying:
        async with site.leader(gateway, GPT) as operator, site.agent(GPT, 1) as leaving:
            staying.client.report(b"staying")
            leaving.client.report(b"leaving")
            await operator.sees(GPT, 0, b"staying")
            await operator.sees(GPT, 1, b"leaving")
            site.etcd.kill()
            await asyncio.sleep(4)  # etcd's session is over; the operator's stream still vouches
        await asyncio.sleep(4)  # the agent left together with the operator
        assert await gateway.counter("agents_lost_total") == 0
        assert staying.client.gateway == gateway.name
        async with site.leader(gateway, GPT, epoch=2) as successor:
            await successor.sees(GPT, 0, b"staying")
            await successor.sees(GPT, 1, b"leaving", alive=False)
