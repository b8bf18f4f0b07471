"""Run ``kubectl falcon explain``: describe a job on one page, as a doctor would. A healthy job gets a short one."""

from __future__ import annotations

from collections.abc import Sequence

from kubectl_falcon.objects import Condition, Diagnosis, Event, Incident, Job, Member, Run
from kubectl_falcon.page import Page
from kubectl_falcon.words import clock, counted, iteration, span, stamp

SHOWN_MEMBERS = 16
SHOWN_LEFT = 8
SHOWN_EVENTS = 10
# The status of each condition while nothing is to be said. A condition of another type is always shown.
WELL = {
    "Accepted": "True",
    "AgentLost": "False",
    "AgentsCutOff": "False",
    "Degraded": "False",
    "Failed": "False",
    "JobChanged": "False",
    "Moving": "False",
    "NodesHealthy": "True",
    "Ready": "True",
    "ReconcileFailed": "False",
    "Recovering": "False",
    "ReportsReadable": "True",
    "RunReadable": "True",
    "StandbyReady": "True",
    "StatusShown": "True",
    "Succeeded": "False",
    "Suspended": "False",
    "Tracking": "True",
    "WarmPoolUsable": "True",
}
OWN_FIELDS = {"CheckpointInMemory", "Elastic", "MachinesChecked"}  # shown among the fields of the job
IN_A_DIAGNOSIS = {"Degraded", "Recovering"}
UNWANTED = {"NotWanted", "NotYet"}  # reasons: the spec does not ask for it, or it is too early
SHOWN_THOUGH_WELL = {("WarmPoolUsable", "Empty")}


def explain(
    job: Job, run: Run | None, events: Sequence[Event], *, now: float, width: int, remarks: Sequence[str] = ()
) -> str:
    """Return the page. ``now``: unix seconds; ``width``: columns; ``remarks``: what could not be read, and why."""
    page = Page(width)
    page.heading(f"TrainingJob {job.namespace}/{job.name}: {job.state or 'not seen by the operator yet'}")
    page.text(job.summary)
    page.raw("")
    _state(page, job, run, now)
    _places(page, job, run, now)
    # The status has the words of each diagnosis; the run has its figures.
    incidents = {incident.id: incident for incident in run.incidents} if run else {}
    for note in job.diagnoses:
        _diagnosis(page, note, incidents.get(note.id), now)
    _conditions(page, job)
    _events(page, events, now)
    if remarks:
        page.heading("Not shown")
        for remark in remarks:
            page.text(remark)
    return str(page)


# -- the job -----------------------------------------------------------------------------------------------------------


def _state(page: Page, job: Job, run: Run | None, now: float) -> None:
    page.field("Iteration", _iteration(job))
    page.field("Ranks", _ranks(job, run, now))
    _size(page, job, now)
    page.field("Began", _began(job, now))
    repairs = f"{counted(job.restarts, 'restart')}, {counted(job.replacements, 'node')} replaced"
    page.field("Repairs", repairs if job.restarts or job.replacements else "")
    page.field("Checkpoint", _wanted(job, "CheckpointInMemory", job.checkpoint_memory != ""))
    page.field("Machines", _wanted(job, "MachinesChecked", job.preflight != "Off"))


def _iteration(job: Job) -> str:
    if not job.current_us:
        return f"unknown now, healthy {iteration(job.healthy_us)}" if job.healthy_us else ""
    text = f"{iteration(job.current_us)} now"
    if job.healthy_us and job.slowdown is not None:
        slower = f" ({job.slowdown:.1f}x)" if job.slowdown >= 1.1 else ""
        text += f", healthy {iteration(job.healthy_us)}{slower}"
    return text


def _ranks(job: Job, run: Run | None, now: float) -> str:
    text = f"{job.ready} train" if job.ready else ""
    if run is not None and run.generation and not job.completed_at:
        since = f" since {stamp(run.phase_since)} ({span(now - run.phase_since)})" if run.phase_since else ""
        does = {"Run": "runs", "Stop": "is being stopped or gathered", "Finish": "ends"}.get(run.phase, run.phase)
        done = f", {counted(job.iterations, 'iteration')} done" if job.iterations else ""
        text += f"{'; ' if text else ''}generation {run.generation} {does}{since}{done}"
    return text


def _size(page: Page, job: Job, now: float) -> None:
    """Show the size of a job that may go on with fewer replicas or ranks, and the ranks that it has lost."""
    size = job.condition("Elastic")
    page.field("Size", size.message if size is not None else "")
    label = "Lost"
    for lost in reversed(job.lost_ranks):
        at = f" at {stamp(lost.at)} ({span(now - lost.at)} ago)" if lost.at else ""
        page.field(label, f"rank {lost.rank} on {lost.node or 'no node'}{at}: {lost.why}")
        label = ""


def _began(job: Job, now: float) -> str:
    if not job.started_at:
        return ""
    if job.completed_at:
        lasted = span(job.completed_at - job.started_at)
        return f"{stamp(job.started_at)}, ended {stamp(job.completed_at)} after {lasted}"
    return f"{stamp(job.started_at)} ({span(now - job.started_at)} ago)"


def _wanted(job: Job, type_: str, wanted: bool) -> str:
    """Return the condition's message about something that the spec requests; nothing where it does not."""
    if not wanted:
        return ""
    found = job.condition(type_)
    return found.message if found is not None else "nothing is known yet"


# -- places ------------------------------------------------------------------------------------------------------------


def _places(page: Page, job: Job, run: Run | None, now: float) -> None:
    if run is None:
        return
    label = "Where"
    for member in run.members[:SHOWN_MEMBERS]:
        page.field(label, f"{_ranks_of(member, job.procs)}: {member.pod} on {member.node or 'no node yet'}")
        label = ""
    more = len(run.members) - SHOWN_MEMBERS
    if more > 0:
        page.field("", f"and {counted(more, 'pod')} more: kubectl get ftr {job.name} -n {job.namespace} -o yaml")
    label = "Evicted"
    for left in run.left[:SHOWN_LEFT]:
        fence = "; fenced, so no job uses it" if left.fenced else ""
        page.field(label, f"{left.node} since {stamp(left.at)} ({span(now - left.at)}): {left.reason}{fence}")
        label = ""
    if len(run.left) > SHOWN_LEFT:
        page.field("", f"and {len(run.left) - SHOWN_LEFT} more")


def _ranks_of(member: Member, procs: int) -> str:
    first = member.replica * procs
    return f"rank {first}" if procs == 1 else f"ranks {first} to {first + procs - 1}"


# -- diagnoses, conditions, Events -------------------------------------------------------------------------------------


def _diagnosis(page: Page, note: Diagnosis, incident: Incident | None, now: float) -> None:
    severity = f", {note.severity}" if note.severity else ""
    resolved = f" at {stamp(note.resolved_at)}" if note.resolved_at else ""
    page.heading(f"Diagnosis {note.id}: {note.what} ({note.state.lower()}{resolved}{severity})")
    page.field("Where", note.where)
    page.field("Since", note.since)
    page.field("Slowdown", note.slowdown)
    cause = note.error_class or note.cause
    page.field("Why", f"{note.why} [{cause}]" if note.why and cause else note.why or cause)
    page.field("Evidence", note.evidence)
    label = "Done"
    for step in note.done:
        page.field(label, f"{clock(step.at)} {step.what}")
        label = ""
    page.field("Result", note.result)
    page.field("Cost", _cost(incident, now))
    page.field("Next", note.next)


def _cost(incident: Incident | None, now: float) -> str:
    """Return what an incident has cost, as far as it is in the run."""
    if incident is None:
        return ""
    if incident.kind == "slow":
        slow_seconds = incident.lost_seconds - (incident.cost_seconds or 0.0)
        repair = f", and {span(incident.cost_seconds)} for the restart" if incident.cost_seconds is not None else ""
        return f"{span(slow_seconds)} lost in slow iterations{repair}" if slow_seconds or repair else ""
    if incident.end is None:
        stands = incident.still_from is not None
        return f"training has been stopped for {span(now - incident.begin)}" if stands else ""
    return f"training was stopped for {span(incident.lost_seconds)}" if incident.lost_seconds else ""


def matters(condition: Condition) -> bool:
    """Check whether a condition reports more than that all is well."""
    if condition.reason in UNWANTED or condition.type in OWN_FIELDS:
        return False
    if (condition.type, condition.reason) in SHOWN_THOUGH_WELL:
        return True
    return condition.type not in IN_A_DIAGNOSIS and condition.status != WELL.get(condition.type)


def _conditions(page: Page, job: Job) -> None:
    shown = [condition for condition in job.conditions if matters(condition)]
    if shown:
        page.heading("Conditions")
    for condition in shown:
        page.text(f"{condition.type} {condition.status} ({condition.reason}): {condition.message}")


def _events(page: Page, events: Sequence[Event], now: float) -> None:
    if not events:
        return
    newest = sorted(events, key=lambda event: event.at, reverse=True)[:SHOWN_EVENTS]
    page.heading(f"Events, the newest {len(newest)}" if len(events) > len(newest) else "Events")
    for event in newest:
        times = f" ({event.count} times)" if event.count > 1 else ""
        warning = "!" if event.type == "Warning" else " "
        page.text(f"{warning} {span(now - event.at)} ago  {event.reason}{times}: {event.message}", indent=" ")
