"""What the operator takes from the ranks' reports for the price of a restart: when they saved what outlasts it."""

from __future__ import annotations

import pytest

from falcon_core.recovery.model.observation import Observation
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.saves.checkpoint import Held
from falcon_core.wire.saves.peers import CopiesReport
from falcon_operator.base.ports import JobReports, Received
from falcon_operator.intent.on_demand import with_checkpoints
from tests.unit.operator.manifests.test_copies import membership, replace, snapshot

NODES = ["a", "b"]  # of two ranks each
PLAIN = Observation(now=100.0, generation=3, running=True, members=[], ranks=[])


def every(step: int, **fields: object) -> list[Held]:
    return [Held(rank, step, 1000 * step + rank, **fields) for rank in range(4)]  # type: ignore[arg-type]


def observed(held: list[Held], copies: list[Held] | None = None) -> Observation:
    """Return what is known when each pod reports what it holds of its ranks, and the other pod's copies."""
    summaries = {
        f"uid-{place}": Received(
            summary=Summary(
                pod_uid=f"uid-{place}",
                sequence=1,
                unix_ns=1,
                generation=3,
                checkpoints=held,
                copies=CopiesReport(port=1, held=copies) if copies is not None else None,
            ),
            at_seconds=9.0,
        )
        for place in range(len(NODES))
    }
    snap = replace(snapshot(NODES), reports=JobReports(summaries=summaries))
    return with_checkpoints(PLAIN, snap, membership(NODES))


def test_a_script_that_saves_by_its_own_means_says_nothing() -> None:
    assert observed([]) == PLAIN


@pytest.mark.parametrize(
    ("held", "copies", "saved_at", "outlasting_at"),
    [
        (every(20), None, 20.0, None),  # in the pods' memory alone
        (every(20, in_folder=True) + every(40), None, 40.0, 20.0),
        (every(20) + every(40), every(20), 40.0, 20.0),
        (every(20, replicated=True), None, 20.0, 20.0),
        (every(20, replicated=True)[:2], None, 20.0, None),  # in one pod alone, which may be left
        (every(40)[:3] + every(20), None, 20.0, None),  # the newest that all have
    ],
)
def test_when_the_newest_was_saved(
    held: list[Held], copies: list[Held] | None, saved_at: float | None, outlasting_at: float | None
) -> None:
    found = observed(held, copies)
    assert (found.saved_at, found.outlasting_at) == (saved_at, outlasting_at)


@pytest.mark.parametrize(("listens", "in_folder"), [(True, True), (True, False), (False, True)])
def test_ranks_that_listen_and_have_a_folder_save_when_they_are_asked(listens: bool, in_folder: bool) -> None:
    assert observed(every(20, listens=listens, in_folder=in_folder)).saves is (listens and in_folder)
