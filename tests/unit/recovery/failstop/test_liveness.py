"""Whose silence means a dead node."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery.failstop.liveness import assess_liveness
from falcon_core.recovery.model.observation import Observation
from tests.unit.recovery.seen import ended, seen

SILENT = {2: {"alive": False}}


def lost(obs: Observation) -> list[int]:
    return [node.replica for node in assess_liveness(obs, None).lost]


def test_everybody_speaks() -> None:
    assert assess_liveness(seen(), None) == assess_liveness(seen(bus_healthy=False), None)
    assert lost(seen()) == []


def test_silence_while_the_peers_advance_is_the_agents() -> None:
    live = assess_liveness(seen(SILENT), None)
    assert (live.lost, live.agents_lost) == ([], [2])


def test_the_nodes_own_word() -> None:
    (found,) = assess_liveness(seen({2: {"alive": False, "node_ready": False}}), None).lost
    assert (found.replica, found.node_not_ready, found.witness) == (2, True, "node node-2 is NotReady")


@pytest.mark.parametrize(
    "peers",
    [
        {0: ended(exit_code=1)},
        {0: ended(signal=6), 1: ended(exit_code=1)},
        {0: {"stalled": True}, 1: {"stalled": True}},
    ],
)
def test_peers_that_broke_off_or_stalled_are_the_second_witness(peers: dict[int, dict[str, Any]]) -> None:
    (found,) = assess_liveness(seen(SILENT, peers), None).lost
    assert (found.replica, found.node_not_ready) == (2, False)


@pytest.mark.parametrize(
    ("peers", "why"),
    [
        ({0: ended(signal=9), 1: ended(exit_code=1)}, "a peer that was killed explains its peers' failures"),
        ({0: {"stalled": True}}, "one peer still advances"),
        ({0: {"stalled": True, "fresh": False}, 1: {"stalled": True, "fresh": False}}, "old reports prove nothing"),
        ({0: ended(exit_code=1), 2: ended(exit_code=1)}, "its own last report shows how it ended"),
    ],
)
def test_what_is_no_witness(peers: dict[int, dict[str, Any]], why: str) -> None:
    assert lost(seen(SILENT, peers)) == [], why


def test_an_own_session_that_is_not_whole_proves_nothing() -> None:
    live = assess_liveness(seen({2: {"alive": False, "node_ready": False}}, bus_healthy=False), None)
    assert (live.lost, live.agents_lost) == ([], [])
    assert "etcd" in live.bus_trouble


GONE = {"alive": False, "node_ready": False}


def test_many_silent_together_on_ready_nodes_are_the_bus() -> None:
    live = assess_liveness(seen({1: {"alive": False}, 2: {"alive": False}}), None)
    assert (live.lost, live.agents_lost) == ([], [])
    assert "2 of 3 agents" in live.bus_trouble


@pytest.mark.parametrize(("silent", "gone"), [({1: GONE, 2: GONE}, [1, 2]), ({1: {"alive": False}, 2: GONE}, [2])])
def test_most_nodes_of_a_job_can_be_lost_together(silent: dict[int, dict[str, Any]], gone: list[int]) -> None:
    live = assess_liveness(seen(silent), None)
    assert [node.replica for node in live.lost] == gone
    assert live.bus_trouble == ""


def test_where_nobody_is_heard_the_way_to_all_may_be_cut() -> None:
    live = assess_liveness(seen(dict.fromkeys(range(3), GONE)), None)
    assert live.lost == []
    assert "all 3 agents" in live.bus_trouble


def test_a_pod_that_is_not_there_is_not_silent() -> None:
    assert assess_liveness(seen({2: {"alive": False, "pod": "Awaited"}}), None).agents_lost == []


@pytest.mark.parametrize(
    ("member", "is_lost"),
    [
        ({"silent_seconds": 1.0}, False),
        ({"silent_seconds": 1.6}, True),
        ({"silent_seconds": 1.6, "agent_ended_seconds": 2.0}, False),
        ({"silent_seconds": 9.0, "agent_ended_seconds": 11.0}, True),
        ({"silent_seconds": 9.0, "agent_ended_seconds": 11.0, "agent_ended": True}, False),
        ({"silent_seconds": 0.1, "node_ready": False}, True),
        ({"silent_seconds": 9.0, "agent_ended": True, "node_ready": False}, True),
    ],
    ids=[
        "the kubelet may still say",
        "it has said nothing",
        "it reports the agent's end",
        "long ago",
        "the agent does not run",
        "NotReady",
        "NotReady while the agent is held back",
    ],
)
def test_an_agent_that_ends_with_its_rank_is_no_lost_node(member: dict[str, Any], is_lost: bool) -> None:
    """The peers break their collectives off either way."""
    obs = seen({2: {"alive": False, **member}}, {0: ended(exit_code=1), 1: ended(exit_code=1)})
    assert lost(obs) == ([2] if is_lost else [])
