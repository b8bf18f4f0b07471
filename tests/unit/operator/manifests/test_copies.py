"""Copies of checkpoints in other pods: what a pod gets for them, who keeps whose, and what the user reads."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.model.membership import Member, Membership
from falcon_core.recovery.model.slowdown import IterationTimes, SlowdownOnset, SlowIncident, SlowLink
from falcon_core.recovery.model.state import Habits, RecoveryState
from falcon_core.recovery.model.stored import Place
from falcon_core.recovery.model.treatments import Outlook, SlowPair
from falcon_core.recovery.strategies.known_slow_links import KEPT_SECONDS
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from falcon_core.wire.saves.checkpoint import Held
from falcon_core.wire.saves.peers import CopiesReport, Peers
from falcon_operator.base.ports import JobReports, NodeView, PodView, Received
from falcon_operator.intent.copies import copied, peers
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.manifests.instrument import instrument
from falcon_operator.manifests.validation import problems
from falcon_operator.status.checkpoints import PROTECTION
from tests.unit.operator.manifests.test_instrument import SETTINGS, SPEC, by_name, identity
from tests.unit.operator.manifests.test_validation import job
from tests.world.running import operator, run, shown, shown_after, trained
from tests.world.world import World

MIB = 1 << 20
COPIES = {"checkpoint": {"memory": "64Mi", "copies": 1}}
ZONE = "topology.kubernetes.io/zone"
replace = msgspec.structs.replace


# -- the pod ---------------------------------------------------------------------------------------------------------


def test_the_agent_alone_gets_a_second_volume_and_its_memory() -> None:
    spec = instrument(SPEC, identity({"checkpoint_bytes": 64 * MIB, "copies_bytes": 64 * MIB}), SETTINGS)
    trainer, agent = by_name(spec["containers"])["trainer"], by_name(spec["initContainers"])["falcon-agent"]
    volume = {"name": "falcon-copies", "emptyDir": {"medium": "Memory", "sizeLimit": str(64 * MIB)}}
    assert by_name(spec["volumes"])["falcon-copies"] == volume
    mounts = {container["name"]: by_name(container["volumeMounts"]) for container in (trainer, agent)}
    assert "falcon-copies" not in mounts["trainer"], "another pod's state is none of its business"
    assert mounts["falcon-agent"]["falcon-copies"]["mountPath"] == "/falcon/copies"
    assert by_name(trainer["env"])["FALCON_CHECKPOINT_COPIES"]["value"] == "1"
    assert agent["resources"]["limits"]["memory"] == f"{384 + 128}Mi"


def test_a_job_without_copies_gets_none() -> None:
    assert "copies" not in str(instrument(SPEC, identity({"checkpoint_bytes": 64 * MIB}), SETTINGS)).lower()


@pytest.mark.parametrize(
    ("spec", "pod", "field", "words"),
    [
        ({"checkpoint": {"copies": 1}}, {}, "spec.checkpoint.copies", "set spec.checkpoint.memory"),
        ({**COPIES, "replicas": 1}, {}, "spec.checkpoint.copies", "set spec.replicas to 2 or more"),
        (
            {"checkpoint": {"memory": "5Gi", "copies": 1}},
            {"resources": {"limits": {"memory": "8Gi"}}},
            "spec.checkpoint.memory",
            "5Gi and as much for copies does not fit into the pod's limit of 8Gi",
        ),
        ({"checkpoint": {"copyBandwidth": "fast"}}, {}, "spec.checkpoint.copyBandwidth", "such as 500Mi"),
    ],
)
def test_what_cannot_be_copied_is_refused(spec: dict[str, Any], pod: dict[str, Any], field: str, words: str) -> None:
    (problem,) = problems(job(pod, **spec))
    assert problem.field == field
    assert words in str(problem)


# -- who keeps whose -------------------------------------------------------------------------------------------------


def snapshot(nodes: list[str], zones: dict[str, str] | None = None, spec: dict[str, Any] | None = None) -> Snapshot:
    """Return a job of two ranks a pod, whose replicas are on these nodes."""
    pods = [
        PodView(namespace="ml", name=f"gpt2-{place}", uid=f"uid-{place}", node=node, pod_ip=f"10.0.0.{place}")
        for place, node in enumerate(nodes)
    ]
    labels = {node: {ZONE: zone} for node, zone in (zones or {}).items()}
    return Snapshot(
        job=job(replicas=len(nodes), procsPerReplica=2, **(COPIES if spec is None else spec)),
        pods=pods,
        nodes={node: NodeView(name=node, labels=labels.get(node, {})) for node in nodes},
        settings=SETTINGS,
        now=100.0,
        monotonic=10.0,
    )


def membership(nodes: list[str]) -> Membership:
    members = [
        Member(replica=place, first_rank=2 * place, pod_name=f"gpt2-{place}", pod_uid=f"uid-{place}", node=node)
        for place, node in enumerate(nodes)
    ]
    return Membership(generation=3, phase="Run", members=members)


def telling(snap: Snapshot, said: dict[int, CopiesReport]) -> Snapshot:
    summaries = {
        f"uid-{place}": Received(
            summary=Summary(pod_uid=f"uid-{place}", sequence=1, unix_ns=1, generation=3, copies=report), at_seconds=9.0
        )
        for place, report in said.items()
    }
    return replace(snap, reports=JobReports(summaries=summaries))


def told(
    nodes: list[str],
    zones: dict[str, str] | None = None,
    said: dict[int, CopiesReport] | None = None,
    recovery: RecoveryState | None = None,
) -> Peers:
    found = peers(telling(snapshot(nodes, zones), said or {}), membership(nodes), recovery or RecoveryState())
    assert found is not None
    return found


def holders(found: Peers) -> list[str]:
    return [pod.holder for pod in found.pods]


def test_every_pod_keeps_the_copies_of_one_other_pod() -> None:
    found = told(["a", "b", "c"])
    assert holders(found) == ["uid-1", "uid-2", "uid-0"]
    assert found.wards("uid-0") == {4, 5}


def test_no_pod_of_the_same_node_or_zone_keeps_them_where_that_can_be() -> None:
    assert holders(told(["a", "a", "b", "b"])) == ["uid-2", "uid-3", "uid-0", "uid-1"]
    zones = {"a": "east", "b": "west", "c": "east", "d": "west"}
    domain = [zones[node] for node in "abcd"]
    for place, holder in enumerate(holders(told(list("abcd"), zones))):
        assert domain[int(holder.removeprefix("uid-"))] != domain[place]


def test_a_replaced_node_leaves_all_other_pairs_as_they_are() -> None:
    assert holders(told(["b", "c", "d"])) == holders(told(["b", "z", "d"])) == holders(told(["b", "a", "d"]))


def test_agents_are_told_where_to_reach_each_other_and_who_has_the_newest_copies() -> None:
    said = {
        0: CopiesReport(port=4000, held=[Held(2, 40, 0), Held(3, 40, 0)]),
        1: CopiesReport(port=4001),
        2: CopiesReport(port=4002, held=[Held(2, 60, 0), Held(0, 60, 0)]),
    }
    found = told(["a", "b", "c"], said=said)
    assert [(pod.host, pod.port) for pod in found.pods] == [
        ("10.0.0.0", 4000),
        ("10.0.0.1", 4001),
        ("10.0.0.2", 4002),
    ]
    assert [pod.sources for pod in found.pods] == [["uid-2"], ["uid-2", "uid-0"], []]


def slow_between(*nodes: str, **fields: Any) -> RecoveryState:
    """Return the state in which the link between these nodes is slow."""
    pair = [Place(rank=0, pod_name="", node=node) for node in nodes]
    link = SlowLink(ranks=pair, members=9, comm="", excess_ns=1, compute_growth=1.0, pair=pair)
    incident = SlowIncident(
        id="gpt2-1",
        phase="Detected",
        onset=SlowdownOnset(at=1.0, generation=3, iteration=1, reported_iteration=2),
        times=IterationTimes(healthy_ns=1, slow_ns=2),
        loss=Loss(),
        subject=link,
    )
    return RecoveryState(slowdowns=[replace(incident, **fields)])


def test_no_copies_go_over_a_slow_link() -> None:
    assert holders(told(list("abcd"))) == ["uid-1", "uid-2", "uid-3", "uid-0"]
    found = told(list("abcd"), recovery=slow_between("a", "b"))
    assert {frozenset((pod.uid, pod.holder)) for pod in found.pods}.isdisjoint({frozenset(("uid-0", "uid-1"))})
    assert sorted(holders(found)) == ["uid-0", "uid-1", "uid-2", "uid-3"]


def test_a_link_that_roles_were_exchanged_against_is_kept_off_when_its_incident_is_over() -> None:
    known = RecoveryState(habits=Habits(slow_pairs=[SlowPair(nodes=["a", "b"], at=90.0)]))
    assert holders(told(list("abcd"), recovery=known)) == holders(told(list("abcd"), recovery=slow_between("a", "b")))
    old = RecoveryState(habits=Habits(slow_pairs=[SlowPair(nodes=["a", "b"], at=90.0 - KEPT_SECONDS)]))
    assert holders(told(list("abcd"), recovery=old)) == holders(told(list("abcd")))


def test_of_equally_new_copies_those_behind_a_slow_link_are_fetched_last() -> None:
    said = {place: CopiesReport(port=4000 + place, held=[Held(0, 60, 0), Held(1, 60, 0)]) for place in (1, 2)}
    assert told(list("abc"), said=said).pods[0].sources == ["uid-1", "uid-2"]
    assert told(list("abc"), said=said, recovery=slow_between("a", "b")).pods[0].sources == ["uid-2", "uid-1"]
    newer = {**said, 1: CopiesReport(port=4001, held=[Held(0, 80, 0), Held(1, 80, 0)])}
    assert told(list("abc"), said=newer, recovery=slow_between("a", "b")).pods[0].sources == ["uid-1", "uid-2"]


def test_a_pod_that_is_about_to_take_another_role_keeps_the_copies_of_that_role() -> None:
    planned = slow_between("a", "b", outlook=Outlook(at=1.0, removed_share=1.0, moves={1: 3, 3: 1}))
    assert holders(told(list("abcd"), recovery=planned)) == ["uid-2", "uid-3", "uid-0", "uid-1"]
    done = slow_between("a", "b", outlook=Outlook(at=1.0, removed_share=1.0, moves={1: 3, 3: 1}), phase="Checking")
    assert holders(told(list("abcd"), recovery=done)) == holders(told(list("abcd"), recovery=slow_between("a", "b")))


def test_the_exchange_for_a_link_counts_beside_a_slow_rank_whose_outlook_is_another_action() -> None:
    link = slow_between("a", "b", outlook=Outlook(at=1.0, removed_share=1.0, moves={1: 3, 3: 1})).leader
    rank = slow_between(outlook=Outlook(at=1.0, removed_share=0.5), subject=None).leader
    assert holders(told(list("abcd"), recovery=RecoveryState(slowdowns=[rank, link]))) == [
        "uid-2",
        "uid-3",
        "uid-0",
        "uid-1",
    ]


@pytest.mark.parametrize(
    ("interface", "said", "host"),
    [
        ("net1", "192.168.7.3", "192.168.7.3"),
        ("net1", "fd00::7", "fd00::7"),
        ("net1", "", "10.0.0.1"),  # an agent of before the job named it
        ("net1", "example.com", "10.0.0.1"),
        (None, "192.168.7.3", "10.0.0.1"),
    ],
)
def test_agents_are_reached_at_the_interface_that_the_job_names(interface: str | None, said: str, host: str) -> None:
    spec = {"checkpoint": {**COPIES["checkpoint"], **({"interface": interface} if interface else {})}}
    snap = telling(snapshot(["a", "b"], spec=spec), {1: CopiesReport(port=4001, host=said)})
    found = peers(snap, membership(["a", "b"]), RecoveryState())
    assert found is not None
    assert [pod.host for pod in found.pods] == ["10.0.0.0", host]


def test_what_a_pod_says_of_its_own_ranks_is_no_copy() -> None:
    snap = telling(snapshot(["a", "b"]), {0: CopiesReport(port=1, held=[Held(0, 40, 0), Held(2, 40, 0)])})
    assert copied(snap, membership(["a", "b"])) == [Held(2, 40, 0)]


def test_a_job_that_never_wanted_copies_is_told_nothing() -> None:
    spec = {"checkpoint": {"memory": "64Mi"}}
    assert peers(snapshot(["a", "b"], spec=spec), membership(["a", "b"]), RecoveryState()) is None
    ended = telling(snapshot(["a", "b"], spec=spec), {0: CopiesReport(port=1)})
    found = peers(ended, membership(["a", "b"]), RecoveryState())
    assert found is not None
    assert holders(found) == ["", ""], "it wants none any more"


def test_while_a_generation_gathers_nothing_is_sent_that_each_report_would_change() -> None:
    gathering = replace(membership(["a", "b"]), phase="Stop")
    assert peers(telling(snapshot(["a", "b"]), {0: CopiesReport(port=4000)}), gathering, RecoveryState()) is None


def test_the_report_crosses_the_bus() -> None:
    said = CopiesReport(port=4000, held=[Held(2, 40, 7, 1)], why="10.0.0.7:4001 cannot be reached")
    summary = Summary(pod_uid="uid-0", sequence=1, unix_ns=1, generation=3, copies=said)
    assert decode_summary(encode_summary(summary, []), "uid-0").copies == said


# -- what the user reads ---------------------------------------------------------------------------------------------


def saved(world: World, step: int, seconds_ago: float = 0.0) -> list[Held]:
    return [Held(rank, step, int((world.clock.unix() - seconds_ago) * 1000)) for rank in range(3)]


async def test_a_checkpoint_with_a_copy_of_each_rank_is_protected() -> None:
    world = World(spec=COPIES)
    world.held = saved(world, 40)
    world.copies = CopiesReport(port=4000, held=world.held)
    await trained(world)
    found = await shown_after(world, PROTECTION, 100)
    assert found is not None
    assert (found.status, found.reason) == ("False", "Copied")
    assert found.message == "step 40 of all 3 ranks also has a copy in the memory of another pod"


async def test_copies_that_lag_for_long_are_shown_with_the_reason() -> None:
    world = World(spec=COPIES)
    world.held = saved(world, 40)
    world.copies = CopiesReport(port=4000, held=saved(world, 20, 5.0), why="10.0.0.7:4000 cannot be reached")
    await trained(world)
    assert await shown_after(world, PROTECTION, 5) is None, "it may be on its way"
    found = await shown_after(world, PROTECTION, 100)
    assert found is not None
    assert (found.status, found.reason) == ("True", "Lagging")
    assert "step 40 is only in the ranks' own pods; step 20 is the newest with a copy" in found.message
    assert "10.0.0.7:4000 cannot be reached" in found.message
    assert "NetworkPolicy" in found.message


async def test_saves_that_follow_each_other_do_not_hide_that_nothing_is_copied() -> None:
    world = World(spec=COPIES)
    world.copies = CopiesReport(port=4000)
    world.held = saved(world, 40)
    await trained(world)
    began = world.clock.seconds

    def saves(w: World) -> bool:
        w.held = saved(w, 40 + int(w.clock.seconds - began) // 5)
        return w.clock.seconds > began + 100

    await run(world, operator, saves, seconds=110)
    found = shown(world, PROTECTION)
    assert found is not None
    assert (found.status, found.reason) == ("True", "Lagging")
    assert "no step of all ranks has a copy" in found.message


async def test_a_job_that_wants_no_copies_has_no_such_condition() -> None:
    world = World(spec={"checkpoint": {"memory": "64Mi"}})
    world.held = saved(world, 40)
    await trained(world)
    assert await shown_after(world, PROTECTION, 100) is None
