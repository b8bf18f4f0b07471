"""When links are measured though none is named yet, and once more after an exchange that was not enough."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.probe import Probed
from falcon_core.recovery.model.slowdown import Applied, SlowIncident, Spell
from falcon_core.recovery.model.stored import Place
from falcon_core.recovery.model.treatments import Swapped
from falcon_core.recovery.probe import probe_controller, probe_targets
from falcon_core.signals.job.cause import CpuEvidence
from falcon_core.wire.reporting.messages import Onset
from tests.unit.recovery.incidents import located
from tests.unit.recovery.pauses import (
    HEALTHY,
    INCIDENT,
    LINK,
    OLD,
    POLICY,
    RANKS,
    SLOW,
    UNNAMED,
    answers,
    job,
    measured,
    ordered,
    state,
)
from tests.unit.recovery.seen import MS, NOW, rank, replace

SUSPECTED = replace(
    UNNAMED,
    phase="Suspected",
    peak_ns=SLOW,
    onset_iteration=80,
    loss=Loss(seconds=3.0, generation=1, counted_iterations=99),
)


def all_slow(**changes: Any) -> Observation:
    """Return a job of which all ranks report an onset, and compute as they did; rank 1 with these ``changes``."""
    onset = Onset(iteration=80, reported_iteration=90, unix_ns=0, before_ns=HEALTHY, after_ns=SLOW)
    fields: dict[str, Any] = {"iteration_ns": [SLOW] * 16, "onset": onset}
    return job(ranks=[rank(at, **{**fields, **(changes if at == 1 else {})}) for at in range(RANKS)])


def test_where_nobody_computes_longer_only_the_network_is_left() -> None:
    probe = probe_controller.step(state(slowdowns=[SUSPECTED]), Look(all_slow(), POLICY)).probe
    assert probe is not None
    assert probe.measures == "Links"


@pytest.mark.parametrize(
    ("slow", "before", "obs"),
    [
        ({"loss": replace(SUSPECTED.loss, seconds=2.9)}, {}, all_slow()),  # a pause costs more
        ({}, {"pauses": replace(OLD, longest_seconds=3.5)}, all_slow()),  # likewise
        ({}, {"spells": [Spell(size=SLOW / HEALTHY, iterations=20)]}, all_slow()),  # such a one passed by itself
        ({"usual": located().culprit}, {}, all_slow()),  # a rank stands out while work moves
        ({"onset_generation": 0}, {}, all_slow()),  # what was healthy is of another generation
        ({}, {}, all_slow(onset=None)),
        ({}, {}, all_slow(compute_ns=[300 * MS] * 16)),
        ({}, {}, all_slow(fresh=False)),
        ({}, {}, all_slow(cpu=CpuEvidence(throttled=0.6, healthy_throttled=0.0))),  # it may be slow to send
    ],
)
def test_what_keeps_links_from_being_measured(slow: dict[str, Any], before: dict[str, Any], obs: Observation) -> None:
    assert (
        probe_controller.step(state(slowdowns=[replace(SUSPECTED, **slow)], **before), Look(obs, POLICY)).probe is None
    )


PAIR = [Place(rank=at, pod_name=f"gpt2-{at}", node=f"node-{at}") for at in (1, 2)]
EXCHANGED = replace(
    INCIDENT,
    link=replace(LINK, pair=PAIR),
    applied=[
        Applied(strategy=each, at=NOW - 50, loss_seconds=9.0, overhead_seconds=9.0) for each in ("Ignore", "SwapNodes")
    ],
    probed=Probed(tries=1, at=NOW - 50, found="Link"),
    switched_at=NOW - 40,
    swapped=Swapped(pods=[], total=2, before_ns=SLOW, expected_ns=HEALTHY, failed="no", failed_at=NOW - 1),
)


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({}, True),
        ({"swapped": replace(EXCHANGED.swapped, failed="")}, False),  # it is being judged, or was enough
        ({"probed": Probed(tries=1, at=NOW - 30, found="Link")}, False),  # they were measured since
        ({"probed": Probed(tries=3, at=NOW - 50, found="Link")}, False),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_where_an_exchange_was_not_enough_links_are_measured_once_more(
    beside: bool, changes: dict[str, Any], measured: bool
) -> None:
    link = replace(EXCHANGED, **changes)
    before = state(slowdowns=[located(id="gpt2-2"), link]) if beside else state(slowdowns=[link])
    assert (probe_controller.step(before, Look(job(), POLICY)).probe is not None) == measured


def test_another_slow_link_counts_anew_and_the_same_one_is_not_measured_again() -> None:
    def then(links: dict[frozenset[int], int]) -> SlowIncident:
        before = ordered(state(slowdowns=[EXCHANGED]))
        after = probe_controller.step(before, Look(job(probes=answers(measured(links))), POLICY)).leader
        assert after is not None
        assert after.link is not None
        return after

    another = then({frozenset((3, 0)): 40_000_000})
    assert another.link is not None
    assert [end.rank for end in another.link.pair] == [3, 0]
    assert (another.swapped, another.id, another.link.excess_ns) == (None, INCIDENT.id, SLOW - HEALTHY)
    assert [each.strategy for each in another.applied] == ["Ignore"]
    assert another.loss.seconds == pytest.approx(100 * (SLOW - HEALTHY) / 1e9), "what it has cost since the exchange"
    same = then({frozenset((1, 2)): 40_000_000})
    assert (same.swapped, same.loss) == (EXCHANGED.swapped, EXCHANGED.loss)
    assert probe_targets.wanted(state(slowdowns=[same]), Look(job(), POLICY)) is None


@pytest.mark.parametrize(("slow_ns", "at_once"), [(HEALTHY + 199 * MS, False), (HEALTHY + 200 * MS, True)])
def test_a_slowdown_that_has_grown_since_links_were_alike_is_measured_again(slow_ns: int, at_once: bool) -> None:
    found = ordered(state(slowdowns=[replace(UNNAMED, slow_ns=HEALTHY + 100 * MS)]))
    alike = probe_controller.step(found, Look(job(probes=answers(measured({}))), POLICY)).leader
    assert alike is not None
    assert alike.probed is not None
    assert alike.probed.found == "Alike"
    at = probe_targets.allowed_at(state(), replace(alike, slow_ns=slow_ns), POLICY)
    assert (at <= NOW) == at_once
