"""A link that was slow before training began: real ranks in two groups, on machines with a network each."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.integration.agent.networks import machines, why_not
from tests.integration.agent.ringing import Deciding, Ring
from tests.integration.gateway.gateways import Site

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.alone,  # ratios of times
    pytest.mark.slow,  # unit recovery/test_sibling_groups and signals/test_transfers show the rules
    pytest.mark.timeout(400),
]

PODS = 4
RATE = "40mbit"
SPEC = {
    "parallelism": {"pipeline": 2},  # data groups of ranks 0 and 1, and of ranks 2 and 3
    "detection": {"pauseBudget": "50%"},
    "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "SwapNodes", "overheadSeconds": 1}]},
}


@pytest.mark.parametrize("slow", [True, False], ids=["a slow link", "well"])
async def test_a_link_that_was_slow_from_the_start_is_found_by_the_other_group(
    slow: bool, tmp_path: Path, site: Site
) -> None:
    (gateway,) = site.gateways
    with machines(PODS) as network:
        if slow:
            network.limit_between(1, 0, RATE)  # rank 1 sends to rank 0
        async with site.leader(gateway) as stream:
            ring = Ring(tmp_path, site, stream, network, members=2)
            try:
                ring.start()
                deciding = Deciding(ring, network.addresses, SPEC)
                await (_found(ring, deciding) if slow else _left_alone(ring, deciding))
                await ring.finish()
            finally:
                ring.stop()


async def _found(ring: Ring, deciding: Deciding) -> None:
    decider = deciding.decider
    await deciding.until("the link is named", lambda: bool(decider.status.diagnoses))
    (note,) = decider.status.diagnoses
    print(
        f"after {len(ring.steps())} steps",
        *(f"{name}: {value}" for name, value in msgspec.structs.asdict(note).items()),
        sep="\n",
    )
    assert note.where == "the link between rank 0 (pod gpt2-0, node node-0), rank 1 (pod gpt2-1, node node-1)"
    assert note.why.endswith("all-reduce in data group of rank 0 takes longer than in the other group of its kind")
    assert "from the first iteration of generation 1" in note.since
    await deciding.until("roles are exchanged", lambda: decider.intent.membership.generation == 2)
    nodes = [member.node for member in decider.intent.membership.members]
    groups = [set(nodes[:2]), set(nodes[2:])]
    print(*groups)
    assert {"node-0", "node-1"} not in groups, "the slow link is in no group any more"


async def _left_alone(ring: Ring, deciding: Deciding) -> None:
    def is_compared() -> bool:
        compared = deciding.decider.intent.recovery.suspicions.compared
        return compared is not None and compared.over

    await deciding.until("groups have been compared", is_compared)
    assert deciding.decider.status.diagnoses == []
    assert deciding.decider.intent.recovery.pauses.probes == 0
