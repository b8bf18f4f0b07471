"""Links that roles were exchanged against are still known for a while."""

from __future__ import annotations

from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import SlowLink
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.stored import Place
from falcon_core.recovery.model.treatments import SlowPair
from falcon_core.recovery.strategies import known_slow_links
from tests.unit.recovery.seen import NOW, four_pods, rank, replace

OBS = four_pods([rank(number) for number in range(4)])  # on node-0 … node-3
POLICY = Policy(job="gpt2", strategies=[], world_size=4)


def link(*nodes: str, adapter: str = "") -> SlowLink:
    ends = [Place(rank=at, pod_name="", node=node) for at, node in enumerate(nodes)]
    return SlowLink(ranks=ends, members=9, comm="", excess_ns=1, compute_growth=1.0, pair=ends, node=adapter)


def ends(state: RecoveryState, obs: Observation = OBS) -> list[frozenset[str]]:
    return [frozenset(pair.nodes) for pair in known_slow_links.standing(state, obs)]


def test_a_link_is_known_until_an_hour_has_passed_or_a_node_is_left() -> None:
    state = known_slow_links.remembered(RecoveryState(), link("node-2", "node-0"), Look(OBS, POLICY))
    assert state.habits.slow_pairs == [SlowPair(nodes=["node-0", "node-2"], at=NOW)]
    assert ends(state) == [frozenset(("node-0", "node-2"))]
    assert ends(state, replace(OBS, now=NOW + known_slow_links.KEPT_SECONDS)) == []
    away = known_slow_links.remembered(RecoveryState(), link("node-2", "node-9"), Look(OBS, POLICY))
    assert ends(away) == []
    assert known_slow_links.recent(away, NOW) == [frozenset(("node-2", "node-9"))], "copies of old roles may lie there"


def test_a_slow_adapter_has_one_node_and_two_pods_of_a_node_have_no_link_that_others_share() -> None:
    state = known_slow_links.remembered(RecoveryState(), link("node-1", adapter="node-1"), Look(OBS, POLICY))
    assert ends(state) == [frozenset(("node-1",))]
    assert (
        known_slow_links.remembered(RecoveryState(), link("node-1", "node-1"), Look(OBS, POLICY)).habits.slow_pairs
        == []
    )


def test_the_same_link_is_known_once_and_the_newest_are_kept() -> None:
    state = RecoveryState()
    for number in range(12):
        state = known_slow_links.remembered(state, link("node-0", f"node-{number % 10 + 1}"), Look(OBS, POLICY))
    assert len(state.habits.slow_pairs) == known_slow_links.MOST
    assert state.habits.slow_pairs[-1].nodes == ["node-0", "node-2"]
    assert len({tuple(pair.nodes) for pair in state.habits.slow_pairs}) == known_slow_links.MOST


def test_an_exchange_that_did_not_help_was_not_against_a_slow_link() -> None:
    state = known_slow_links.remembered(RecoveryState(), link("node-0", "node-1"), Look(OBS, POLICY))
    state = known_slow_links.remembered(state, link("node-2", "node-3"), Look(OBS, POLICY))
    assert ends(known_slow_links.forgotten(state, link("node-1", "node-0"))) == [frozenset(("node-2", "node-3"))]
