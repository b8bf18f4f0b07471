"""Describe ranks whose result of an all-reduce is not that of the other ranks (``spec.anomalies.verifyEvery``).

A diagnosis stays until its generation ends: what a rank computed from the wrong result stays wrong, too. No diagnosis
is a reason for a repair (``docs/adr/0173``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from falcon_core.model import Cause
from falcon_core.signals.job.result_differences import Difference, find_differences
from falcon_core.times import BLIND_SECONDS
from falcon_core.wire.reporting.verification import RankResults
from falcon_operator.api.trainingjob import DiagnosisStatus
from falcon_operator.base.time_format import timestamp
from falcon_operator.intent.observation.fresh_reports import fresh_reports
from falcon_operator.status.text.format import NAMED, listed
from falcon_operator.status.view import View

CAUSE: Final = Cause.SILENT_CORRUPTION.value
ERROR_CLASS: Final = "SilentDataCorruption"
MOST: Final = 4  # diagnoses of one generation
_NEXT: Final = (
    "Falcon repairs nothing because of a result: the ranks may have had different parameters since that call, so begin"
    " again from a checkpoint before it; test memory and network of {where}"
)
_NAMED: Final = "this node, and of its neighbours in rank order, through which Gloo passes results on"
_UNNAMED: Final = "the nodes of these ranks"


def silent_corruption(view: View) -> list[DiagnosisStatus]:
    """Return the diagnoses of results that differ, in the order in which they were found."""
    prefix = _prefix(view)
    shown = [note for note in view.snap.job.status.diagnoses if note.cause == CAUSE and note.id.startswith(prefix)]
    if view.unheard and view.blind_since is None:
        return shown
    if not view.watching or not view.snap.job.spec.anomalies.verify_every:
        return []
    notes = {note.id: note for note in shown}
    for each in find_differences(list(_reported(view)), view.policy.world_size):
        note = _note(view, each)
        if len(notes) < MOST:
            notes.setdefault(note.id, note)
    return list(notes.values())


def _reported(view: View) -> Iterator[RankResults]:
    for member, summary, _ in fresh_reports(view.snap, view.intent.membership, BLIND_SECONDS):
        # An agent speaks of its own pod alone.
        own = range(member.first_rank, member.first_rank + view.snap.job.spec.procs_per_replica)
        yield from (each for each in summary.results if each.rank in own)


def _prefix(view: View) -> str:
    return f"{view.snap.job.metadata.name}-{view.intent.membership.generation}-{CAUSE.lower()}-"


def _note(view: View, found: Difference) -> DiagnosisStatus:
    size = view.policy.world_size
    ranks = found.ranks or tuple(range(size))
    at = f"call {found.first}" if found.calls == 1 else f"one of {found.calls} calls from call {found.first} on"
    if found.ranks:
        who = _ranks(found.ranks)
        why = f"{who}: the result of an all-reduce differs from that of the other ranks (group of all ranks, {at})"
        evidence = f"{size - len(ranks)} of {size} ranks have the same bytes, unlike {who}"
    else:
        why = f"the result of an all-reduce is not the same on {_ranks(ranks)} (group of all ranks, {at})"
        evidence = f"no majority of {size} ranks has the same bytes: it is not known who is right"
    place = view.intent.membership.members[ranks[0] // view.snap.job.spec.procs_per_replica]
    named, every = len(found.ranks) == 1, view.snap.job.spec.anomalies.verify_every
    return DiagnosisStatus(
        id=f"{_prefix(view)}{ranks[0] if found.ranks else f'group-{ranks[0]}'}",
        what="anomaly, silent data corruption",
        where=listed([_place(view, rank) for rank in ranks[:NAMED]], len(ranks)),
        since=timestamp(view.snap.now),
        why=why,
        cause=CAUSE,
        error_class=ERROR_CLASS,
        evidence=f"class {ERROR_CLASS}: {evidence}; one of {every} calls is compared",
        next=_NEXT.format(where=_NAMED if named else _UNNAMED),
        node=place.node if named else "",
        rank=ranks[0] if named else None,
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    names = listed([str(rank) for rank in ranks[:NAMED]], len(ranks))
    return f"rank{'s' * (len(ranks) > 1)} {names}"


def _place(view: View, rank: int) -> str:
    member = view.intent.membership.members[rank // view.snap.job.spec.procs_per_replica]
    return f"rank {rank} (pod {member.pod_name}, node {member.node or 'none'})"
