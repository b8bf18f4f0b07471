"""Describe what the anomaly service finds by comparing ranks with each other and with their own past.

As with ``anomalies``, these diagnoses have no intent behind them. Each look makes them from the service's newest
answer, at most one of each kind, and they are gone when it speaks of them no more. They never are a reason for a
repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from falcon_core.model import Cause
from falcon_core.recovery import Member
from falcon_core.text import clean, clip
from falcon_core.wire.verdicts import OF_THE_JOB, Verdict
from falcon_operator.api.trainingjob import DiagnosisStatus
from falcon_operator.base.ports import JobFindings
from falcon_operator.base.time_format import timestamp
from falcon_operator.status.text.format import listed
from falcon_operator.status.view import View


class _Kind(NamedTuple):
    cause: Cause
    what: str
    why: str  # with {who} and {metric}


_KINDS: Final = {
    "errors": _Kind(
        Cause.RANK_LOGS_ERRORS,
        "anomaly, one rank prints errors",
        "{who} prints errors ({metric}), and the other ranks do not",
    ),
    "differs": _Kind(
        Cause.RANK_DIFFERS,
        "anomaly, a rank differs from its peers",
        "{metric} of {who} is unlike that of the other ranks at the same time",
    ),
    "silent": _Kind(
        Cause.SERIES_ENDED,
        "anomaly, a series has ended",
        "{metric} of {who} no longer arrives, and that of the other ranks does",
    ),
    "loss-differs": _Kind(
        Cause.LOSS_DIFFERS,
        "anomaly, a replica's loss differs",
        "{metric} of {who} differs from that of the other ranks, which was equal before",
    ),
    "loss-spike": _Kind(Cause.LOSS_SPIKE, "anomaly, the loss spikes", "{metric} of {who} has risen, and stays there"),
    "loss-stall": _Kind(
        Cause.LOSS_STALLS,
        "anomaly, the loss stalls",
        "{metric} of {who} is the same number for minutes, while iterations go on",
    ),
}
CAUSES: Final = tuple(kind.cause.value for kind in _KINDS.values())
_NEXT: Final = "Falcon repairs nothing because of a comparison; look at what differs there, and at the rank's output"
_NEXT_LOSS: Final = "Falcon repairs nothing because of a loss; if it stays so, go back to a checkpoint before it began"


class _Found(NamedTuple):
    """A verdict, and the member of the job that it is about; the first one where it is about all ranks."""

    verdict: Verdict
    member: Member

    @property
    def rank(self) -> int:
        return self.member.first_rank if self.verdict.rank == OF_THE_JOB else self.verdict.rank


def comparisons(view: View) -> list[DiagnosisStatus]:
    """Return the diagnoses of the service's verdicts, in the order of their kinds."""
    findings = view.snap.findings
    before = {note.id: note for note in view.snap.job.status.diagnoses if note.cause in CAUSES}
    if not view.watching:
        return []
    if findings is None:
        # Soon after the operator's start the service has not answered yet. What is shown of an earlier generation ends.
        return [before[name] for kind in _KINDS.values() if (name := _id(view, kind)) in before]
    if findings.generation != view.intent.membership.generation:
        return []
    found = list(_located(view, findings))
    notes = []
    for name, kind in _KINDS.items():
        same = sorted((each for each in found if each.verdict.kind == name), key=_order)
        if same:
            notes.append(_note(view, kind, same, before.get(_id(view, kind)), findings.age_seconds))
    return notes


def witnessed(note: DiagnosisStatus, compared: Sequence[DiagnosisStatus]) -> DiagnosisStatus:
    """Return an open incident with the comparisons that name the same rank on the same node, as further evidence.

    They are shown, and decide nothing.
    """
    if note.state == "Resolved" or note.rank is None:
        return note
    alike = [each.why for each in compared if (each.rank, each.node) == (note.rank, note.node)]
    said = [f"the anomaly service says so, too: {why}" for why in alike]
    return msgspec.structs.replace(note, evidence="; ".join([*([note.evidence] if note.evidence else []), *said]))


def _located(view: View, findings: JobFindings) -> Iterable[_Found]:
    """Yield the verdicts with their members. The job's own pods sent the series: a rank may not exist."""
    many = view.snap.job.spec.procs_per_replica
    members = {member.first_rank // many: member for member in view.intent.membership.members}
    for verdict in findings.verdicts:
        member = members.get(max(0, verdict.rank) // many)
        if member is not None:
            yield _Found(verdict, member)


def _order(found: _Found) -> tuple[float, float, int]:
    """Return the sort key: what is farthest from the peers or from itself, then what has lasted longest."""
    verdict = found.verdict
    return (-max(verdict.peers_score, verdict.own_score), -verdict.lasted, found.rank)


def _id(view: View, kind: _Kind) -> str:
    return f"{view.snap.job.metadata.name}-{view.intent.membership.generation}-{kind.cause.value.lower()}"


def _note(
    view: View, kind: _Kind, same: Sequence[_Found], known: DiagnosisStatus | None, age: float
) -> DiagnosisStatus:
    """Describe one kind. What is shown stays while the service speaks of it: its figures move at each answer."""
    if known is not None and any(_is_of(known, found) for found in same):
        return known
    chosen = same[0]
    verdict, member = chosen.verdict, chosen.member
    whole = verdict.rank == OF_THE_JOB
    who = "the job" if whole else f"rank {chosen.rank}"
    also = sorted({each.rank for each in same} - {chosen.rank})
    more = f"; others alike: {listed([f'rank {rank}' for rank in also])}" if also and not whole else ""
    place = "all ranks" if whole else f"{who} (pod {member.pod_name}, node {member.node or 'none'}){more}"
    return DiagnosisStatus(
        id=_id(view, kind),
        what=kind.what,
        where=place,
        since=timestamp(view.snap.now - age - verdict.lasted),
        why=kind.why.format(who=who, metric=clean(verdict.metric)),
        cause=kind.cause.value,
        evidence=_evidence(verdict),
        next=_NEXT_LOSS if kind.cause.value.startswith("Loss") else _NEXT,
        node="" if whole else member.node,
        rank=None if whole else chosen.rank,
        metric=clean(verdict.metric),
    )


def _is_of(known: DiagnosisStatus, found: _Found) -> bool:
    rank = None if found.verdict.rank == OF_THE_JOB else found.rank
    return (known.rank, known.metric) == (rank, clean(found.verdict.metric))


def _evidence(verdict: Verdict) -> str:
    """Say how far the series is from the peers' and from its own past."""
    name = clean(verdict.metric)
    parts = [f"{name} {verdict.value:.4g}" if verdict.value is not None else f"{name}: nothing"]
    if verdict.peers is not None:
        parts.append(f"the other ranks' median {verdict.peers:.4g}{_multiple(verdict.peers_score)}")
    if verdict.own is not None:
        parts.append(f"before {verdict.own:.4g}{_multiple(verdict.own_score)}")
    if verdict.also:
        parts.append(f"also unlike: {', '.join(clean(each) for each in verdict.also)}")
    if verdict.detectors:
        parts.append(f"found by {', '.join(clean(each) for each in verdict.detectors)}")
    return clip("; ".join(parts), 1024)


def _multiple(score: float) -> str:
    return f" ({score:.1f}x what healthy windows show)" if score > 0 else ""
