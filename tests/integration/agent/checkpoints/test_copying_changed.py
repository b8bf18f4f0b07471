"""What keeps a step in common while keepers change, agents restart, transfers fail and generations begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from falcon_agent.checkpoint import client, replication
from falcon_agent.checkpoint.client import Peer
from falcon_agent.checkpoint.protocol import PeerError
from falcon_core.wire.saves.checkpoint import Parts
from tests.integration.agent.checkpoints.test_copying import Pod, make, ready, tell, until

__all__ = ["make"]  # the fixture
Make = Callable[..., Pod]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies fail for as long as a slow machine may take, without saves going on meanwhile."""
    monkeypatch.setattr(replication, "GRACE_SECONDS", 3600.0)


def held(pod: Pod) -> set[int]:
    """Return the steps that a pod's rank has in its own buffers."""
    return {each.step for each in pod.store.held() if each.rank == pod.rank}


@pytest.mark.usefixtures("patient")
async def test_a_new_keeper_leaves_the_copies_of_a_lost_pod_until_the_ranks_have_loaded(make: Make) -> None:
    """The lost pod's step in common may be the older one: its successor fetches both, whatever keepers change."""
    own, lost, keeper = make("own", 0), make("lost", 1), make("keeper", 2)
    await ready(own, lost, keeper)
    tell([own, lost, keeper], {"lost": "keeper"})
    lost.save(20)
    await until("the first is copied", lambda: lost.told == (True, {1: 20}))
    lost.save(40, number=1)
    await until("both are copied", lambda: lost.told == (True, {1: 40}))
    own.save(20)
    keeper.save(20)

    successor = make("successor", 1)
    await ready(successor)
    tell([own, successor, keeper], {"own": "keeper"}, generation=2)
    await until("it is asked to take the others", lambda: own.report.why.startswith("the holder does not take copies"))
    assert own.told == (True, {}), "saves wait meanwhile"
    assert keeper.steps() == {(1, 20), (1, 40)}
    await successor.fetched(2)
    assert held(successor) == {20, 40}
    keeper.note_loaded(2, 20)
    await until("it takes the others now", lambda: own.told == (True, {0: 20}))


async def test_the_step_before_the_newest_comes_from_the_former_keeper(make: Make) -> None:
    lost, former, present = make("lost", 0), make("former", 1), make("present", 2)
    await ready(lost, former, present)
    tell([lost, former, present], {"lost": "former"})
    lost.save(20)
    await until("it is copied", lambda: lost.told == (True, {0: 20}))
    tell([lost, former, present], {"lost": "present"})
    lost.save(40)
    await until("the present keeper has the next", lambda: (0, 40) in present.steps())

    successor = make("successor", 0)
    await ready(successor)
    tell([successor, former, present], {}, generation=2)
    await successor.fetched(2)
    assert held(successor) == {20, 40}, "the other ranks may have the first alone"


async def test_buffers_get_their_checkpoints_together_and_a_cut_transfer_is_begun_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, keeper = make("lost", 0), make("keeper", 1)
    await ready(lost, keeper)
    tell([lost, keeper], {"lost": "keeper"})
    lost.save(20)
    await until("the first is copied", lambda: lost.told == (True, {0: 20}))
    lost.save(40, number=1)
    await until("both are copied", lambda: lost.told == (True, {0: 40}))
    successor = make("successor", 0)
    await ready(successor)
    fetches, tries = client.fetch, []

    async def cut(peer: Peer, wanted: Parts, buffer: Path) -> bytes:
        tries.append(wanted.step)
        page = await fetches(peer, wanted, buffer)
        assert held(successor) == set(), "an agent that ended now would take the half for the whole"
        if tries == [40, 20]:
            raise PeerError("cut off")
        return page

    monkeypatch.setattr(client, "fetch", cut)
    tell([successor, keeper], {}, generation=2)
    await successor.fetched(2)
    assert (tries, held(successor)) == ([40, 20, 20], {20, 40})


@pytest.mark.usefixtures("patient")
async def test_saves_go_on_waiting_through_a_short_failure(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    own, keeper = make("own", 0), make("keeper", 1)
    await ready(own, keeper)
    tell([own, keeper], {"own": "keeper"})
    own.save(20)
    await until("it is copied", lambda: own.told == (True, {0: 20}))
    puts = client.put

    failures, told = [], []

    def note(on: bool, ranks: Mapping[int, tuple[int, int]], sent: int) -> None:
        told.append(on)
        own.take(on, ranks, sent)

    async def fails(*_: object) -> bool:
        failures.append(1)
        raise PeerError("the network is away")

    monkeypatch.setattr(own.copying, "_on_copied", note)
    monkeypatch.setattr(client, "put", fails)
    own.save(40)
    await until("it fails again and again", lambda: len(failures) >= 3)
    assert own.report.why == "the network is away"
    assert own.told == (True, {0: 20})
    monkeypatch.setattr(client, "put", puts)
    await until("it is copied after all", lambda: own.told == (True, {0: 40}))
    assert False not in told

    monkeypatch.setattr(client, "put", fails)
    monkeypatch.setattr(replication, "GRACE_SECONDS", 0.5)
    own.save(60)
    await until("no save waits any more", lambda: False in told)

    monkeypatch.setattr(replication, "GRACE_SECONDS", 3600.0)
    told.clear()
    await until("it is tried again", lambda: True in told)
    await until("a failure that lasts holds no further save up", lambda: not told[-1])


@pytest.mark.usefixtures("patient")
async def test_saves_go_on_waiting_while_the_agent_restarts(make: Make) -> None:
    own, keeper = make("own", 0), make("keeper", 1)
    await ready(own, keeper)
    tell([own, keeper], {"own": "keeper"})
    own.save(20)
    await until("it is copied", lambda: own.told == (True, {0: 20}))
    own.end()
    own.save(40)
    restarted = make("own", 0)
    await ready(restarted)
    await until("it knows no other pod yet", lambda: restarted.report.why == "not known yet which pod keeps them")
    assert restarted.told == (True, {})
    tell([restarted, keeper], {"own": "keeper"})
    await until("it goes on", lambda: restarted.told == (True, {0: 40}))


@pytest.mark.usefixtures("patient")
async def test_what_a_lost_keeper_had_is_forgotten_before_the_ranks_start(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer to a pod that is gone may stand still for half a minute."""
    own, keeper = make("own", 0), make("keeper", 1)
    await ready(own, keeper)
    tell([own, keeper], {"own": "keeper"})
    own.save(20)
    await until("it is copied", lambda: own.told == (True, {0: 20}))
    stuck = asyncio.Event()

    async def stands_still(*_: object) -> bool:
        stuck.set()
        await asyncio.sleep(3600)
        return True

    monkeypatch.setattr(client, "put", stands_still)
    own.save(40)
    await until("it stands still", stuck.is_set)
    await own.fetched(2)
    assert own.told == (True, {})
