"""When links and machines are measured under a pause, what a pause costs whom, and which verdicts name an end."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.model import Evidence
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.cost import loss
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.probe import Pauses, Probe, Probed
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.probe import probe_controller, probe_targets
from falcon_core.recovery.strategies import swap_for_link
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinkReport, LinksReport
from falcon_core.wire.measurement.probe import ProbeReport
from tests.unit.recovery.pauses import (
    HEALTHY,
    INCIDENT,
    LINK,
    OLD,
    POLICY,
    RANKS,
    SLOW,
    UNNAMED,
    USUAL,
    answers,
    job,
    measured,
    ordered,
    ready,
    state,
)
from tests.unit.recovery.seen import MS, NOW, member, rank, replace


def verdict(report: Any) -> SlowIncident:
    after = probe_controller.step(ordered(), Look(job(probes=answers(report)), POLICY)).leader
    assert after is not None
    return after


def test_all_ranks_stop_at_the_same_iteration_soon() -> None:
    probe = ordered().probe
    assert probe is not None
    assert (probe.phase, probe.token, len(probe.ring)) == ("Hold", "f" * 32, RANKS)
    assert set(probe.stops.values()) == {6}, "half a second ahead, at a second an iteration"
    assert probe_controller.arrive_seconds(probe) < probe_controller.deadline_seconds(probe) < 20
    assert probe_controller.links_order(probe).ring[3] == (3, "10.0.0.3", 41003)


def test_the_slowest_link_names_its_ends() -> None:
    slow = verdict(measured({frozenset((1, 2)): 40_000_000, frozenset((2, 3)): 2_000_000_000}))
    assert slow.link is not None
    assert [(place.rank, place.node) for place in slow.link.pair] == [(1, "node-1"), (2, "node-2")]
    assert swap_for_link.has_ends(slow.link)
    assert slow.probed is not None
    assert (slow.probed.found, slow.probed.tries) == ("Link", 1)


def test_where_transfers_are_known_to_be_slow_a_link_at_less_than_half_is_why() -> None:
    weak = {frozenset((1, 2)): round(USUAL / 2.2)}
    known = verdict(measured(weak))
    assert known.link is not None
    assert {place.node for place in known.link.pair} == {"node-1", "node-2"}
    assert unnamed(measured(weak))[1].link is None, "of good machines, as long as nothing else points at a link"


def test_the_ranks_of_a_link_are_where_they_run_now() -> None:
    before = replace(LINK, ranks=[replace(LINK.ranks[0], node="left", pod_name="gone"), *LINK.ranks[1:]])
    obs = job(probes=answers(measured({frozenset((1, 2)): 40_000_000})))
    after = probe_controller.step(ordered(state(slowdowns=[replace(INCIDENT, link=before)])), Look(obs, POLICY)).leader
    assert after is not None
    assert after.link is not None
    assert after.link.ranks == LINK.ranks


def test_links_that_could_not_be_measured_name_nobody() -> None:
    def half(at: int) -> ProbeReport:
        links = [LinkReport((at + 1) % RANKS, why="10.0.0.9 port 4: Connection refused")]
        return ProbeReport(1, LinksReport(41000 + at, True, links), held=True)

    slow = verdict(half)
    assert slow.link == LINK
    assert slow.probed is not None
    assert slow.probed.found == ""
    assert slow.probed.text.startswith("0 of 4 links could be measured: ")


def unnamed(report: Any) -> tuple[RecoveryState, SlowIncident]:
    """Return what is known after all links were measured, though no rank had been named."""
    after = probe_controller.step(
        ordered(state(slowdowns=[UNNAMED], incidents=3)), Look(job(probes=answers(report)), POLICY)
    )
    assert after.leader is not None
    return after, after.leader


def test_a_job_that_is_slow_though_nobody_computes_longer_has_its_links_measured() -> None:
    after, slow = unnamed(measured({frozenset((1, 2)): 40_000_000}))
    assert (slow.id, slow.phase, slow.times.named_ns) == ("gpt2-4", "Detected", SLOW)
    assert slow.link is not None
    assert [place.node for place in slow.link.pair] == ["node-1", "node-2"]
    assert (slow.link.members, slow.link.excess_ns, slow.link.comm) == (RANKS, SLOW - HEALTHY, "")
    assert after.probe is not None
    assert after.probe.incident == "gpt2-4"
    opened = ProbeReport(1, LinksReport(), is_open=True, held_ms=1500)
    over = probe_controller.step(after, Look(job(probes=answers(lambda _at: opened)), POLICY))
    assert over.probe is None
    assert over.leader is not None
    assert over.leader.probed is not None
    assert over.leader.probed.standstill_seconds == 1.5


def test_of_a_nodes_own_link_its_ranks_are_named() -> None:
    _, slow = unnamed(measured({frozenset((1, 2)): 40_000_000, frozenset((2, 3)): 40_000_000}))
    assert slow.link is not None
    assert (slow.link.node, [place.rank for place in slow.link.ranks], slow.link.members) == ("node-2", [2], 1)


def test_links_that_are_alike_name_nobody() -> None:
    after, slow = unnamed(measured({}))
    assert (slow.id, slow.link, after.incidents) == ("", None, 3)
    assert slow.probed is not None
    assert (slow.probed.found, slow.probed.tries) == ("Alike", 1)


@pytest.mark.parametrize(
    ("changes", "compute_ns"),
    [
        ({"phase": "Suspected"}, 200 * MS),  # a habit, or another look may name somebody
        ({}, 300 * MS),  # somebody computes for longer than an iteration lasted
        ({"slow_ns": 260 * MS}, 200 * MS),
    ],
)
def test_a_slowdown_that_may_have_another_reason_stops_nobody(changes: dict[str, Any], compute_ns: int) -> None:
    before = state(slowdowns=[replace(UNNAMED, **changes)])
    obs = job(ranks=[rank(at, iteration_ns=[SLOW] * 16, compute_ns=[compute_ns] * 16) for at in range(RANKS)])
    assert probe_controller.step(before, Look(obs, POLICY)).probe is None


@pytest.mark.parametrize(
    ("pauses", "at"),
    [
        (Pauses(since=NOW - 3600), NOW - 3600 + 300),
        (Pauses(since=NOW - 600, count=1, seconds=4.0, longest_seconds=4.0, last_at=NOW - 300), NOW - 600 + 800),
        (Pauses(since=NOW - 36000, count=1, seconds=4.0, longest_seconds=4.0, last_at=NOW - 20), NOW + 40),
    ],
)
def test_the_budget_is_of_the_jobs_time_and_pauses_keep_apart(pauses: Pauses, at: float) -> None:
    before = state(pauses=pauses)
    assert probe_targets.allowed_at(before, before.leader, POLICY) == pytest.approx(at)
    assert (probe_controller.step(before, Look(job(), POLICY)).probe is None) == (at > NOW)


def test_a_pause_is_no_part_of_the_slowdowns_loss() -> None:
    stood = job(ranks=[rank(at, iteration_ns=[SLOW] * 15 + [4 * SLOW]) for at in range(RANKS)])
    counted = loss.counted(INCIDENT, Look(stood, POLICY), None, paused=True)
    assert counted.loss.seconds == pytest.approx((SLOW - HEALTHY) / 1e9)
    assert loss.counted(INCIDENT, Look(stood, POLICY), None).loss.seconds > 2
    assert not probe_controller.disturbs(probe_controller.step(state(), Look(job(), POLICY)), job())
    assert probe_controller.disturbs(ordered(), job())
    assert probe_controller.disturbs(state(pauses=replace(OLD, last_at=NOW - 2)), job())
    assert not probe_controller.disturbs(state(pauses=replace(OLD, last_at=NOW - 9)), job())


def test_a_pause_that_a_failure_ended_counts_from_its_order() -> None:
    over = probe_controller.step(ordered(), Look(job(now=NOW + 2, running=False, generation=2), POLICY))
    assert over.probe is None
    assert (over.pauses.count, over.pauses.seconds) == (1, 2.0)


def test_an_agent_that_is_gone_ends_the_pause_at_once() -> None:
    members = [member(at, alive=at != 2) for at in range(RANKS)]
    after = probe_controller.step(ordered(), Look(job(members=members, probes=answers(ready)), POLICY))
    assert after.probe is not None
    assert after.probe.phase == "Release"
    assert after.leader is not None
    assert after.leader.probed == Probed(
        tries=1, lead_seconds=0.5, again_at=NOW + 60, at=NOW, text="the agent of pod gpt2-2 is gone"
    )


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({"link": None}, {}),
        ({"link": replace(LINK, node="node-1")}, {}),
        ({"link": replace(LINK, ranks=LINK.ranks[:2], members=2)}, {}),
        ({"phase": "Checking"}, {}),
        ({"probed": Probed(tries=3)}, {}),
        ({}, {"enforce": False}),
        ({}, {"pause_budget": 0.0}),
    ],
)
def test_nobody_is_stopped_without_need(changes: dict[str, Any], policy: dict[str, Any]) -> None:
    after = probe_controller.step(
        state(slowdowns=[replace(INCIDENT, **changes)]), Look(job(), replace(POLICY, **policy))
    )
    assert after.probe is None


def test_a_relief_ends_the_probe() -> None:
    after = probe_controller.step(replace(ordered(), slowdowns=[]), Look(job(probes=answers(ready)), POLICY))
    assert isinstance(after.probe, Probe)
    assert after.probe.phase == "Release"


# -- machines --------------------------------------------------------------------------------------------------------

CULPRIT = Culprit(
    rank=1,
    replica=1,
    pod_name="gpt2-1",
    node="node-1",
    slowdown=1.8,
    compute_ns=SLOW,
    healthy_compute_ns=HEALTHY,
    peers_compute_ns=HEALTHY,
)
DOUBTED = replace(INCIDENT, phase="Located", link=None, culprit=CULPRIT, evidence=Evidence.WORK_MAY_MOVE)
OWED = replace(DOUBTED, loss=Loss(seconds=1e6, generation=1, counted_iterations=99))
REPLACING = replace(POLICY, strategies=[("ReplaceNode", 60.0)])


def computing(rates: dict[int, float], **fields: Any) -> Any:
    """Return each pod's answer: how fast its machine computes, beside 1."""

    def report(at: int) -> ProbeReport:
        micros = {"fp32": round(1e6 * rates.get(at, 1.0))}
        machine = CheckReport(1, backend="numpy", devices="1 × CPU", micros=micros)
        return ProbeReport(1, LinksReport(41000 + at, True), held=True, machine=replace(machine, **fields))

    return report


def looked_at(report: Any, slow: SlowIncident = OWED) -> Probed:
    before = state(slowdowns=[slow])
    begun = probe_controller.step(before, Look(job(), REPLACING))
    held = probe_controller.step(begun, Look(job(probes=answers(ready)), REPLACING))
    assert held.probe is not None
    assert (held.probe.phase, held.probe.measures, held.probe.ring) == ("Hold", "Machines", [])
    after = probe_controller.step(held, Look(job(probes=answers(report)), REPLACING)).leader
    assert after is not None
    assert after.probed is not None
    return after.probed


@pytest.mark.parametrize(
    ("rate", "slowdown", "found"),
    [
        (1 / 1.8, 1.8, "Slow"),
        (1 / 1.3, 1.5, "Slow"),  # it explains half
        (1 / 1.3, 2.2, "AsFast"),  # it does not
        (1 / 1.15, 1.2, "AsFast"),  # noise of a short measurement
        (1.0, 1.8, "AsFast"),
    ],
)
def test_a_machine_is_slow_where_that_explains_half_of_what_its_rank_is_slower(
    rate: float, slowdown: float, found: str
) -> None:
    slow = replace(OWED, culprit=replace(CULPRIT, slowdown=slowdown))
    probed = looked_at(computing({1: rate}), slow)
    assert (probed.found, probed.node) == (found, "node-1")
    assert (probed.again_at > NOW) == (found == "AsFast")


def test_another_slow_machine_says_nothing_of_the_slow_ranks() -> None:
    assert looked_at(computing({3: 0.3})).found == "AsFast"


def test_a_machine_that_computes_wrongly_is_at_fault() -> None:
    wrong = looked_at(computing({}, problems=["its fp32 products are wrong: by 0.3 of the largest entry"]))
    assert wrong.found == "Slow"
    assert "products are wrong" in wrong.text


def test_agents_that_measure_no_machines_leave_the_doubt() -> None:
    probed = looked_at(lambda at: ProbeReport(1, LinksReport(41000 + at, True), held=True))
    assert (probed.found, probed.text) == ("", "not measured")


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": Loss(generation=1, counted_iterations=99)},  # it has not paid yet
        {"evidence": Evidence.COUNTER_SHOWS_CAUSE},  # it is taken without a test
        {"evidence": Evidence.PROGRAM},
        {"phase": "Mitigating"},
        {"probed": Probed(tries=3)},
    ],
)
def test_no_machine_is_measured_without_need(changes: dict[str, Any]) -> None:
    assert probe_controller.step(state(slowdowns=[replace(OWED, **changes)]), Look(job(), REPLACING)).probe is None
