"""A job whose links are measured while training stands still, and what its pods answer."""

from __future__ import annotations

from typing import Any

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.model.observation import Look, Observation, ProbeSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Pauses
from falcon_core.recovery.model.slowdown import IterationTimes, SlowdownOnset, SlowIncident, SlowLink
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.stored import Place
from falcon_core.recovery.probe import probe_controller
from falcon_core.wire.measurement.check_links import LinkReport, LinksReport
from falcon_core.wire.measurement.probe import ChannelStart, ProbeReport, RankStart
from falcon_core.wire.ring import Traffic
from tests.unit.recovery.seen import MS, NOW, member, rank, replace

RANKS = 4
POLICY = Policy(job="gpt2", strategies=[("Ignore", None)], world_size=RANKS, pause_budget=0.01)
HEALTHY, SLOW = 250 * MS, 1000 * MS
LINK = SlowLink(
    ranks=[Place(rank=at, pod_name=f"gpt2-{at}", node=f"node-{at}") for at in range(RANKS)],
    members=RANKS,
    comm="all ranks",
    excess_ns=SLOW - HEALTHY,
    compute_growth=1.0,
)
INCIDENT = SlowIncident(
    id="gpt2-1",
    phase="Detected",
    onset=SlowdownOnset(at=NOW - 60, generation=1, iteration=40, reported_iteration=45),
    times=IterationTimes(healthy_ns=HEALTHY, slow_ns=SLOW),
    loss=Loss(generation=1, counted_iterations=99),
    subject=LINK,
)
OLD = Pauses(since=NOW - 3600)

USUAL = 5_000_000_000  # bits a second


def job(**fields: Any) -> Observation:
    base = Observation(
        now=NOW,
        generation=1,
        running=True,
        running_seconds=100.0,
        members=[member(at) for at in range(RANKS)],
        ranks=[rank(at, iteration_ns=[SLOW] * 16) for at in range(RANKS)],
        nonce="f" * 32,
    )
    return replace(base, **fields)


def state(**fields: Any) -> RecoveryState:
    return replace(RecoveryState(slowdowns=[INCIDENT], pauses=OLD), **fields)


def answers(report: Any, age: float = 0.0) -> dict[int, ProbeSeen]:
    """Return the pods' answers: ``report`` by replica."""
    return {at: ProbeSeen(report=report(at), address=f"10.0.0.{at}", age_seconds=age) for at in range(RANKS)}


def ready(at: int) -> ProbeReport:
    start = RankStart(at, [ChannelStart(1, RANKS, at, Traffic.COLLECTIVE, 0, 10, 2)], 5)
    return ProbeReport(1, LinksReport(41000 + at), [start], is_open=True)


def ordered(before: RecoveryState | None = None) -> RecoveryState:
    """Return the state in which ranks are ordered to stand still."""
    begun = probe_controller.step(before or state(), Look(job(), POLICY))
    return probe_controller.step(begun, Look(job(probes=answers(ready)), POLICY))


def measured(links: dict[frozenset[int], int]) -> Any:
    def report(at: int) -> ProbeReport:
        peers = [(at + 1) % RANKS, (at - 1) % RANKS]
        own = [LinkReport(peer, links.get(frozenset((at, peer)), USUAL), 80, 100, 100, 950) for peer in peers]
        return ProbeReport(1, LinksReport(41000 + at, True, own), held=True)

    return report


UNNAMED = replace(INCIDENT, id="", link=None, onset_iteration=1)
