"""Machines and links that are measured while real ranks stand still: whole pods on machines with their own network."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tests.integration.agent.cpus import machines_with
from tests.integration.agent.networks import Network, machines, why_not
from tests.integration.agent.pod import eventually
from tests.integration.agent.ringing import ByHand, Deciding, Ring
from tests.integration.gateway.gateways import Site

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.alone,  # ratios of times
    pytest.mark.timeout(500),
]

PODS = 4
HEALTHY_STEPS = 60
RATE = "40mbit"
LADDER = [{"type": "Ignore"}, {"type": "SwapNodes", "overheadSeconds": 1}]
SPEC = {"mitigation": {"strategies": LADDER}, "detection": {"pauseBudget": "50%"}}


@pytest.fixture
def network() -> Iterator[Network]:
    with machines(PODS) as made:
        yield made


@pytest.fixture
async def ring(tmp_path: Path, site: Site, network: Network) -> AsyncIterator[Ring]:
    (gateway,) = site.gateways
    async with site.leader(gateway) as stream:
        made = Ring(tmp_path, site, stream, network)
        made.start()
        yield made
        made.stop()


async def test_the_slow_one_of_four_links_is_found_while_training_stands_still(ring: Ring, network: Network) -> None:
    deciding = Deciding(ring, network.addresses, SPEC)
    await deciding.until("healthy steps", lambda: len(ring.steps()) >= HEALTHY_STEPS)
    network.limit_between(1, 0, RATE)  # rank 1 sends to rank 0
    named: list[str] = []  # every text that says where the fault is, in the order of their appearance

    def names_two_ends() -> bool:
        for each in deciding.decider.status.diagnoses:
            if each.where not in named:
                named.append(each.where)
        return bool(named) and named[-1].startswith("the link between")

    await deciding.until("two ends are named", names_two_ends)
    print(*named, sep="\n")
    assert all(each.startswith("a link between rank 0 ") for each in named[:-1]), "passive evidence names all four"
    (note,) = deciding.decider.status.diagnoses
    print(*(f"{name}: {value}" for name, value in msgspec.structs.asdict(note).items()), sep="\n")
    assert note.where == ("the link between rank 0 (pod gpt2-0, node node-0), rank 1 (pod gpt2-1, node node-1)")
    await deciding.until("training goes on", lambda: deciding.decider.intent.recovery.probe is None)
    pauses = deciding.decider.status.pauses
    assert pauses is not None
    assert pauses.count == 1
    print(pauses, f"{deciding.orders[2][0] - deciding.orders[1][0]:.2f} s from the order to the release")
    assert pauses.milliseconds < 5000
    assert [order.phase for _, order in deciding.orders] == ["Prepare", "Hold", "Release"]
    assert {"Validating", "LinkLocated"} <= {event.reason for event in deciding.events}
    await deciding.until("roles are exchanged", lambda: deciding.decider.intent.membership.generation == 2)
    order = [int(member.node.removeprefix("node-")) for member in deciding.decider.intent.membership.members]
    assert abs(order.index(0) - order.index(1)) == 2, "the slow pair are no neighbours of the ring any more"
    await ring.finish()
    losses = [[step.loss for step in ring.steps(rank)] for rank in range(PODS)]
    assert losses[0] == losses[1] == losses[2] == losses[3]


CORES = (0.4, 0.15, 0.4, 0.4)


@pytest.fixture
def cores(ring: Ring) -> Iterator[None]:
    """Give each pod the cores of a machine, the second pod fewer."""
    with machines_with(CORES) as folders:
        for folder, launcher in zip(folders, ring.launchers, strict=True):
            (folder / "cgroup.procs").write_text(str(launcher.process.pid))
        yield
        ring.stop()  # before the cgroups go


@pytest.mark.slow  # tests/e2e/slowdowns/test_check shows it on the cluster
async def test_a_check_names_the_machine_with_fewer_cores(ring: Ring, cores: None, network: Network) -> None:
    deciding = Deciding(
        ring, network.addresses, {"detection": {"pauseBudget": "0%"}, "mitigation": {"mode": "Observe"}}
    )
    await deciding.until("healthy steps", lambda: len(ring.steps()) >= HEALTHY_STEPS)
    deciding.decider.ask_for_check("now")
    await deciding.until("it is over", lambda: deciding.decider.intent.recovery.pauses.count)
    check = deciding.decider.status.check
    print(check)
    assert check is not None
    assert (check.asked, check.state) == ("now", "Done")
    assert check.slow[0].startswith("node-1 (pod gpt2-1): computes ")
    assert len(check.slow) == 1
    assert check.result.startswith("machines: 4 compared, 1 slow; links: 4 measured")
    assert 0 < check.standstill_milliseconds < 6000
    assert {"Validating", "Checked"} <= {event.reason for event in deciding.events}
    await ring.trained(len(ring.steps()) + 5)


class Asked(ByHand):
    """Probes whose end no agent may hear."""

    async def said(self, what: str, pods: list[int]) -> None:
        """Wait until these pods say why their ranks go on."""
        uids = [self.ring.job.pod(at).pod_uid for at in pods]

        async def heard() -> bool:
            known = self.ring.summaries()
            answers = [known[uid].probe for uid in uids]
            answered = [each for each in answers if each is not None and each.number == self.number and each.why]
            return len(answered) == len(pods) and all(what in each.why for each in answered)

        try:
            await eventually(heard, what)
        except AssertionError:
            print({uid: known.probe for uid, known in self.ring.summaries().items()})
            raise


def longest(ring: Ring, since: float) -> float:
    """Return the longest time between two steps since then (monotonic seconds)."""
    ends = [step.at for step in ring.steps() if step.at > since]
    return max(after - before for before, after in pairwise(ends))


@pytest.mark.slow  # stories/slowdowns/test_probe ends pauses so, shim/test_gate_pauses opens real gates
async def test_whatever_goes_wrong_training_goes_on(ring: Ring, network: Network) -> None:
    by_hand = Asked(ring, network.addresses)
    await ring.trained(40)
    usual = statistics.median(b.at - a.at for a, b in pairwise(ring.steps()))

    reported = await by_hand.prepared()
    began = time.monotonic()
    by_hand.hold(reported, deadline_seconds=15.0)
    await by_hand.said("the operator did not end the pause in time", list(range(PODS)))
    await ring.trained(len(ring.steps()) + 5)
    stood = longest(ring, began)
    print(f"the operator is silent: {stood:.1f} s, a step usually {usual:.2f} s")
    assert 4.0 < stood < 8.0

    reported = await by_hand.prepared()
    await asyncio.sleep(3)
    began = time.monotonic()
    by_hand.hold(reported, lead_seconds=-3.0)
    await by_hand.said("was past the cut", list(range(PODS)))
    await ring.trained(len(ring.steps()) + 5)
    assert longest(ring, began) < 2.5 + usual, "no rank waited for a cut that was passed"

    reported = await by_hand.prepared()
    began = time.monotonic()
    by_hand.hold(reported, deadline_seconds=7.0)
    await asyncio.sleep(1.5)
    ring.agents[2].kill()
    ring.agents[2].wait()
    await by_hand.said("", [0, 1, 3])  # whatever they say
    await ring.trained(len(ring.steps()) + 5)
    print(f"an agent is dead: {longest(ring, began):.1f} s")
    assert 2.0 < longest(ring, began) < 9.0
    ring.agents[2] = ring.start_agent(2)
    await by_hand.said("its agent has restarted", [2])

    await by_hand.prepared()
    await ring.finish()
    losses = [[step.loss for step in ring.steps(rank)] for rank in range(PODS)]
    assert losses[0] == losses[1] == losses[2] == losses[3]
    assert [step.number for step in ring.steps()] == list(range(1, len(losses[0]) + 1))
