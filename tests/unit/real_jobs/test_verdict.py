"""What counts as found, as wrong and as too much."""

from __future__ import annotations

from evaluation.real_jobs.outcome import Case, Incident, Outcome, Taken
from evaluation.real_jobs.scene import Broken
from evaluation.real_jobs.verdict import limits, tally


def _outcome(
    *, broken: list[Broken] | None = None, incidents: list[Incident] | None = None, taken: list[Taken] | None = None
) -> Outcome:
    return Outcome(
        case=Case(pattern="constant", world=16, level="low", seed=0),
        iterations=10_000,
        broken=broken or [],
        incidents=incidents or [],
        taken=taken or [],
        tracked=1.0,
        records_crc=0,
        records=0,
        seconds=0.0,
    )


def test_a_component_is_found_from_its_onset_on_and_by_its_kind() -> None:
    node, link = Broken(node=3, onset=100), Broken(node=5, onset=100, link=True)
    early = tally([_outcome(broken=[node], incidents=[Incident(opened=50, nodes={3: 60})])])
    assert (early.found, early.wrong_named) == (0, 1)
    both = [Incident(opened=104, nodes={3: 120}), Incident(opened=200, links={5: 210})]
    found = tally([_outcome(broken=[node, link], incidents=both)])
    assert (found.found, found.delays, found.wrong_named) == (2, [20, 110], 0)
    mistaken = tally([_outcome(broken=[link], incidents=[Incident(opened=104, nodes={5: 120})])])
    assert (mistaken.found, mistaken.wrong_named) == (0, 1)


def test_a_node_that_is_prepared_and_switched_counts_once() -> None:
    taken = [Taken(at=200, node=3, what=what, slow=False) for what in ("Prepare", "Switch")]
    assert tally([_outcome(taken=taken)]).wrong_taken == 1


def test_a_suspicion_that_passes_is_no_incident_and_is_counted() -> None:
    suspected = [Incident(opened=5), Incident(opened=9)]
    counts = tally([_outcome(incidents=[*suspected, Incident(opened=20, incident_at=24)])])
    assert (counts.incidents, counts.silent, counts.silent_rate) == (1, 2, 2.0)


def missed(outcomes: list[Outcome]) -> list[str]:
    return [limit.what for limit in limits(outcomes) if not limit.kept]


def test_limits() -> None:
    once = [_outcome(incidents=[Incident(opened=5, incident_at=5)])]
    assert missed(once) == []
    assert (
        len(missed([_outcome(incidents=[Incident(opened=5, incident_at=5), Incident(opened=9, incident_at=40)])])) == 1
    )
    taken = Taken(at=200, node=3, what="Prepare", slow=False)
    assert len(missed([_outcome(taken=[taken])])) == 1
    unseen = _outcome(broken=[Broken(node=3, onset=100)], taken=[taken])
    assert len(missed([unseen])) == 2
