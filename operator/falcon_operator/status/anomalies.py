"""Describe what agents find odd about their own ranks: what runs out, and numbers that are NaN or infinite.

These diagnoses have no intent behind them. Each look makes them from the newest reports, at most one of each kind, and
they are gone when no report speaks of them. None is a reason for a repair, but for a number that stays NaN where the
job asks for a restart (``spec.anomalies.onNaN``): the diagnosis then says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from falcon_core.model import Cause
from falcon_core.recovery import Look, Member, checkpoint_on_demand
from falcon_core.recovery.views import not_finite
from falcon_core.text import clean
from falcon_core.times import BLIND_SECONDS
from falcon_core.wire.reporting.anomalies import Anomaly
from falcon_operator.api.trainingjob import DiagnosisStatus, ForecastStatus
from falcon_operator.base.time_format import clock_time, timestamp, unix_seconds
from falcon_operator.intent.observation.forecasts import ENDS
from falcon_operator.intent.observation.fresh_reports import fresh_reports
from falcon_operator.status.text.format import duration, listed, size
from falcon_operator.status.view import View

CAUSES: Final = (Cause.RUNS_OUT.value, Cause.NOT_FINITE.value)
_KEPT_SHARE: Final = 0.1  # of the time left, by which a shown forecast may be off before it is written again
_KEPT_SECONDS: Final = 30.0  # likewise, where less is left


class _Resource(NamedTuple):
    what: str
    limit: str  # "reaches …": with {limit} and {metric}
    sized: bool  # counted in bytes


_RESOURCES: Final = {
    "Memory": _Resource("anomaly, memory runs out", "its memory limit of {limit}", sized=True),
    "Disk": _Resource("anomaly, a disk fills", "the end of the {limit} at {metric}", sized=True),
    "Inodes": _Resource("anomaly, inodes run out", "the end of the {limit} inodes at {metric}", sized=False),
    "OpenFiles": _Resource("anomaly, open files run out", "its limit of {limit} open files", sized=False),
    "Processes": _Resource("anomaly, processes run out", "its limit of {limit} processes and threads", sized=False),
}
_FIND: Final = "find what grows: a restart gives back what processes hold, a full disk stays full"
_BEGIN_AGAIN: Final = "if it stays so, end the job and begin again from a checkpoint before that iteration"
_NOT_RESTARTED: Final[dict[str, str]] = {
    "Observed": "spec.mitigation.mode is not Enforce",
    "Repeated": "all ranks were restarted for such a number at {at}, and that is done once in {window}"
    " (spec.recovery.window): look at the data and the learning rate",
    "NeverFinite": "it was never finite in this generation, so that no checkpoint is known to be sound",
    "NothingHeld": "no rank keeps checkpoints in memory: save them by falcon_torch.Checkpoint",
    "NothingSound": "all checkpoints in memory were saved after its last finite value, and no folder has any",
}


class _Found(NamedTuple):
    """An anomaly, of whom, and how old its report is."""

    anomaly: Anomaly
    member: Member
    age: float


def anomalies(view: View) -> list[DiagnosisStatus]:
    """Return the diagnoses of anomalies, in the order of their kinds."""
    before = {note.id: note for note in view.snap.job.status.diagnoses if note.cause in CAUSES}
    if view.unheard and view.blind_since is None:
        return list(before.values())  # what was shown stays until the first report
    if not view.watching:
        return []
    found = list(_reported(view))
    notes = []
    for kind in (*_RESOURCES, "NotFinite"):
        same = sorted((each for each in found if each.anomaly.kind == kind), key=_order)
        if same:
            known = before.get(_id(view, kind))
            notes.append(_number_note(view, same, known) if kind == "NotFinite" else _forecast_note(view, same, known))
    return notes


def brief(notes: Sequence[DiagnosisStatus]) -> str:
    """Return the most urgent of these anomalies in a few words, for the summary; empty where there is none."""
    if not notes:
        return ""
    # A number that is NaN spoils work already; of what runs out, the first to do so. Such times sort as text.
    note = min(notes, key=lambda each: each.forecast.at if each.forecast is not None else "")
    what = note.what.partition(", ")[2]
    at = f" at about {clock_time(unix_seconds(note.forecast.at))}" if note.forecast is not None else ""
    return f"{f'rank {note.rank}: ' if note.rank is not None else ''}{what}{at}"


def _reported(view: View) -> Iterable[_Found]:
    for member, summary, age in fresh_reports(view.snap, view.intent.membership, BLIND_SECONDS):
        if not summary.anomalies:
            continue
        # An agent speaks of its own pod alone: a rank that does not exist would not fit into the status.
        own = (-1, *range(member.first_rank, member.first_rank + view.snap.job.spec.procs_per_replica))
        yield from (_Found(each, member, age) for each in summary.anomalies if each.rank in own)


def _order(found: _Found) -> tuple[float, int]:
    """Return the sort key: what is reached first, or what has lasted longest."""
    anomaly = found.anomaly
    return (-anomaly.lasted if anomaly.kind == "NotFinite" else anomaly.left - found.age, _first_rank(found))


def _id(view: View, kind: str) -> str:
    return f"{view.snap.job.metadata.name}-{view.intent.membership.generation}-{kind.lower()}"


def _first_rank(found: _Found) -> int:
    return found.anomaly.rank if found.anomaly.rank >= 0 else found.member.first_rank


def _who(view: View, found: _Found) -> str:
    """Return the rank, or all ranks of the pod."""
    first, many = _first_rank(found), view.snap.job.spec.procs_per_replica
    if found.anomaly.rank >= 0 or many == 1:
        return f"rank {first}"
    return f"the container of ranks {first} to {first + many - 1}"


def _where(view: View, chosen: _Found, others: Sequence[_Found]) -> str:
    member = chosen.member
    also = sorted({_first_rank(each) for each in others} - {_first_rank(chosen)})
    more = f"; others alike: {listed([f'rank {rank}' for rank in also])}" if also else ""
    return f"{_who(view, chosen)} (pod {member.pod_name}, node {member.node or 'none'}){more}"


def _chosen(same: Sequence[_Found], known: DiagnosisStatus | None) -> _Found:
    """Return the finding to show: what is shown already, unless another finding is much more urgent."""
    first = same[0]
    shown = next((each for each in same if _is_shown(each, known)), first)
    if shown.anomaly.kind == "NotFinite":
        return shown
    slack = max(_KEPT_SECONDS, _KEPT_SHARE * first.anomaly.left)
    return shown if shown.anomaly.left - shown.age <= first.anomaly.left - first.age + slack else first


def _is_shown(found: _Found, known: DiagnosisStatus | None) -> bool:
    """Check whether a diagnosis is of this finding: of its rank, and of its number or volume."""
    return known is not None and (known.rank, known.metric) == (_first_rank(found), clean(found.anomaly.metric))


def _since(view: View, found: _Found, known: DiagnosisStatus | None) -> str:
    if known is not None:
        return known.since  # made again from durations, it would move by a second with each report
    return timestamp(view.snap.now - found.age - found.anomaly.lasted)


def _number_note(view: View, same: Sequence[_Found], known: DiagnosisStatus | None) -> DiagnosisStatus:
    chosen = _chosen(same, known)
    then = _next_of_number(view)
    if known is not None and _is_shown(chosen, known):
        return msgspec.structs.replace(known, next=then)
    anomaly = chosen.anomaly
    at = f" at iteration {anomaly.iteration}" if anomaly.iteration >= 0 else ""
    what = f"{_who(view, chosen)} printed {anomaly.metric} that is NaN or infinite{at}"
    return DiagnosisStatus(
        id=_id(view, anomaly.kind),
        what="anomaly, a number is NaN or infinite",
        where=_where(view, chosen, same),
        since=_since(view, chosen, None),
        why=f"{what}, and it has stayed so",
        cause=Cause.NOT_FINITE.value,
        evidence=f"the first such line: {anomaly.text}",
        next=then,
        node=chosen.member.node,
        rank=_first_rank(chosen),
        metric=clean(anomaly.metric),
    )


def _next_of_number(view: View) -> str:
    """Say whether the ranks are restarted for a number that stays NaN, and if not, why."""
    look = Look(view.obs, view.policy)
    why = not_finite.hindrance(view.intent.recovery, look)
    if why is None:
        return "all ranks are restarted from a checkpoint that was saved before its last finite value"
    if why == "NoNumber":
        return f"Falcon repairs nothing because of a number; {_BEGIN_AGAIN}, or set spec.anomalies.onNaN to Restart"
    at = not_finite.restarted_at(view.intent.recovery, look)
    said = _NOT_RESTARTED.get(why, why).format(
        at=clock_time(at) if at is not None else "", window=duration(view.policy.window_seconds)
    )
    return f"nothing is restarted: {said}; {_BEGIN_AGAIN}"


def _forecast_note(view: View, same: Sequence[_Found], known: DiagnosisStatus | None) -> DiagnosisStatus:
    chosen = _chosen(same, known)
    anomaly, now = chosen.anomaly, view.snap.now
    left = max(0.0, anomaly.left - chosen.age)
    known = known if _is_shown(chosen, known) else None
    then = _next_of_forecast(view, anomaly.kind, left)
    if known is not None and _holds(known.forecast, now, left):
        return msgspec.structs.replace(known, next=then)
    resource = _RESOURCES[anomaly.kind]
    figure = size if resource.sized else str
    limit = resource.limit.format(limit=figure(anomaly.limit), metric=anomaly.metric)
    at, earliest, latest = (now - chosen.age + each for each in (anomaly.left, anomaly.earliest, anomaly.latest))
    step = _iteration_at(view, left)
    reaches = f"{_who(view, chosen)} reaches {limit}"
    return DiagnosisStatus(
        id=_id(view, anomaly.kind),
        what=resource.what,
        where=_where(view, chosen, same),
        since=_since(view, chosen, known),
        why=(
            f"{reaches}{step}, in {duration(left)} ({duration(max(0.0, earliest - now))} to"
            f" {duration(max(0.0, latest - now))}), counted from {clock_time(now)}"
        ),
        cause=Cause.RUNS_OUT.value,
        evidence=(
            f"in use {figure(anomaly.used)} of {figure(anomaly.limit)}, growing steadily for {duration(anomaly.lasted)}"
        ),
        next=then,
        node=chosen.member.node,
        rank=_first_rank(chosen),
        metric=clean(anomaly.metric),
        forecast=ForecastStatus(
            resource=anomaly.kind,
            at=timestamp(at),
            earliest=timestamp(earliest),
            latest=timestamp(latest),
            made_at=timestamp(now),
        ),
    )


def _next_of_forecast(view: View, kind: str, left: float) -> str:
    """Say whether the ranks save because of a forecast, and what is left to a person.

    ``left``: seconds until the limit is reached.
    """
    demand = view.intent.demand
    is_present = (
        demand.ahead
        and demand.generation == view.intent.membership.generation
        and view.snap.now - demand.asked_at <= checkpoint_on_demand.AGAIN_SECONDS
    )
    if kind not in ENDS or left > checkpoint_on_demand.AHEAD_SECONDS or not is_present:
        return f"Falcon repairs nothing because of a forecast; save a checkpoint before then, and {_FIND}"
    if demand.saved:
        return f"all ranks saved step {demand.saved} because of it; {_FIND}"
    if demand.given_up:
        return f"not all ranks saved a checkpoint in time: save one before then, and {_FIND}"
    return f"all ranks are asked to save a checkpoint; {_FIND}"


def _holds(shown: ForecastStatus | None, now: float, left: float) -> bool:
    """Check whether a shown forecast is still near enough to the newest, so that the status need not be written."""
    if shown is None:
        return False
    slack = max(_KEPT_SECONDS, _KEPT_SHARE * left)
    return abs(unix_seconds(shown.at) - now - left) <= slack and now - unix_seconds(shown.made_at) <= slack


def _iteration_at(view: View, left: float) -> str:
    """Say at which iteration the limit is reached; empty where iterations are not counted."""
    if not view.current_ns or not view.obs.iterations:
        return ""
    iteration = view.obs.iterations + left * 1e9 / view.current_ns
    digits = max(0, len(str(round(iteration))) - 3)  # more digits than three would claim too much
    return f" at about iteration {round(iteration, -digits):,.0f}"
