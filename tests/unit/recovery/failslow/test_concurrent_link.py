"""A link beside slow ranks whose micro-batches were moved: when links are measured, and what outlives a rank's name."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.failslow import concurrent_link
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.probe import Probed
from falcon_core.recovery.model.slowdown import Applied, SlowIncident, SlowLink
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.treatments import Moved, Sharing, Swapped
from falcon_core.recovery.probe import probe_targets
from falcon_core.wire.reporting.microbatches import MicroShare
from tests.unit.recovery.incidents import located
from tests.unit.recovery.seen import MS, NOW, POLICY, replace, seen, unnamed

LADDER = replace(
    POLICY, strategies=[("Ignore", None), ("AdjustMicrobatches", None), ("SwapNodes", 10.0), ("ReplaceNode", 60.0)]
)
MICRO_MS, SHARES = (45, 45, 90), (5, 5, 2)  # of ranks that take 20 ms besides: 245 ms at most
MOVED = Moved(per_rank=4, share=2, most=5, before_ns=430 * MS, expected_ns=295 * MS, slowest_ns=245 * MS)
SHARING = Sharing(generation=1, shares=list(SHARES), per_rank=4, at=NOW - 60, taken_iteration=80)
S2 = Applied(strategy="AdjustMicrobatches", at=NOW - 60, loss_seconds=1.0, overhead_seconds=1.0)
IGNORED = Applied(strategy="Ignore", at=NOW - 60, loss_seconds=0.0, overhead_seconds=0.0)
LOSS = Loss(seconds=3.0, generation=1, counted_iterations=100)
LINK = SlowLink(ranks=[], members=3, comm="all ranks", excess_ns=100 * MS, compute_growth=1.0)


def job(iteration_ms: int, **fields: Any) -> Observation:
    """Return a job whose iterations take so long; by the shares alone, they would take 295 ms."""
    return seen(
        ranks={
            number: {
                "compute_ns": [(20 + 4 * each) * MS] * 16,
                "iteration_ns": [iteration_ms * MS] * 16,
                "micro": MicroShare(per_rank=4, share=share, micro_ns=each * MS),
                **fields,
            }
            for number, (share, each) in enumerate(zip(SHARES, MICRO_MS, strict=True))
        }
    )


def suspicion(**fields: Any) -> SlowIncident:
    """Return a slowdown without a name whose micro-batches were moved; iterations took 250 ms before."""
    return replace(unnamed(430 * MS), **{"id": "", "moved": MOVED, "applied": [S2], **fields})


@pytest.mark.parametrize(
    ("iteration_ms", "change", "measured"),
    [
        (600, {"loss": LOSS}, True),
        (600, {"loss": replace(LOSS, seconds=2.9)}, False),  # less than a pause costs
        (320, {}, False),  # the shares explain it
        (600, {"moved": None}, False),
        (600, {"link": LINK, "id": "gpt2-1", "phase": "Detected"}, True),  # known, but for its ends
    ],
)
def test_links_are_measured_where_moved_shares_explain_too_little(
    iteration_ms: int, change: dict[str, Any], measured: bool
) -> None:
    state = RecoveryState(slowdowns=[suspicion(**change)], sharing=SHARING)
    target = probe_targets.wanted(state, Look(job(iteration_ms), LADDER))
    assert (target is not None) == measured
    assert target is None or target.measures == "Links"


def test_too_few_iterations_of_the_new_shares_show_nothing() -> None:
    state = RecoveryState(slowdowns=[suspicion()], sharing=replace(SHARING, taken_iteration=86))
    assert probe_targets.wanted(state, Look(job(600), LADDER)) is None


def test_a_link_that_was_measured_stays_beside_the_rank_that_is_named_now() -> None:
    culprit = located().culprit
    assert culprit is not None
    probed = Probed(tries=1, found="Link", at=NOW)
    slow = suspicion(id="gpt2-1", phase="Detected", link=LINK, probed=probed, applied=[S2, IGNORED], loss=Loss())
    state, named = concurrent_link.put_beside(RecoveryState(slowdowns=[slow]), slow, culprit)
    beside = state.concurrent_link
    assert beside is not None
    assert (beside.id, beside.link, beside.probed, beside.moved) == ("gpt2-1", LINK, probed, None)
    assert beside.applied == [IGNORED]
    assert (named.id, named.link, named.probed, named.moved) == ("", None, None, MOVED)
    assert named.applied == [S2]
    swapped = replace(slow, swapped=Swapped(pods=[], total=0, before_ns=600 * MS, expected_ns=300 * MS))
    for unknown in (replace(slow, probed=None), swapped):
        assert concurrent_link.put_beside(RecoveryState(), unknown, culprit) == (RecoveryState(), unknown)


@pytest.mark.parametrize(
    ("changes", "iterations", "failed"),
    [
        ({}, 10, concurrent_link.NOT_ENOUGH),
        ({}, 9, ""),  # two windows of the new generation
        ({"switched_at": NOW - 50}, 10, ""),  # the generation is still that of before
        ({"swapped": None}, 10, None),
    ],
)
def test_an_exchange_is_not_enough_where_ranks_do_not_explain_the_new_generation(
    changes: dict[str, Any], iterations: int, failed: str | None
) -> None:
    exchanged = Swapped(pods=[], total=2, before_ns=700 * MS, expected_ns=300 * MS)
    fields = {"link": LINK, "phase": "Detected", "swapped": exchanged, "switched_at": NOW - 101, **changes}
    beside = replace(unnamed(550 * MS), **fields)
    first = located(moved=MOVED, slow_ns=600 * MS)
    obs = job(600, iterations=iterations)
    taken = concurrent_link.look(RecoveryState(slowdowns=[first, beside]), first, Look(obs, LADDER))
    state = taken.state
    assert taken.is_empty
    assert state.concurrent_link is not None
    swapped = state.concurrent_link.swapped
    assert (None if swapped is None else swapped.failed) == failed
