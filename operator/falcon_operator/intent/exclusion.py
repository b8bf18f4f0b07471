"""Excluding a node is the job's matter; fencing it for all takes a witness outside the job (DESIGN §2, State, safety).

Witnesses are the node's own NotReady and a burn-in pod that the operator runs there once the job has left. A node that
was fenced for being NotReady gets its burn-in when it is back, and is released if it passes. A test that failed is
repeated as long as the job lives, since most slow nodes grow well again; a node that passed comes back to the job after
a probation (``recovery.departures``).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.recovery import departures
from falcon_core.recovery.observation import Action, Replace
from falcon_core.recovery.state import Departure
from falcon_operator.api import TAINT_FENCED, DiagnosisStatus, Excluded, Member
from falcon_operator.effects import BurnIn, Effect, TaintNode, UntaintNode
from falcon_operator.intent.intent import Intent
from falcon_operator.intent.snapshot import BurnInResult, Snapshot
from falcon_operator.times import clock_time, timestamp, unix_seconds

replace = msgspec.structs.replace


def fence_lost_nodes(intent: Intent, actions: Sequence[Action], members: Sequence[Member]) -> Intent:
    """Fence at once where a lost node is NotReady; ``members`` as they were before the actions."""
    nodes = {
        members[action.replica].node: action.reason
        for action in actions
        if isinstance(action, Replace) and action.node_not_ready
    }
    nodes.pop("", None)
    if not nodes:
        return intent
    verdicts = {**intent.state.verdicts, **{node: f"{node} fenced: it is NotReady" for node in nodes}}
    return replace(
        intent,
        excluded=[replace(one, fenced=True) if one.node in nodes else one for one in intent.excluded],
        state=replace(intent.state, verdicts=verdicts),
    )


def apply_burn_in_results(snap: Snapshot, intent: Intent) -> Intent:
    """Take over the outcome of every burn-in that is done, and the circuit breaker's word on a fence."""
    for entry in intent.excluded:
        if entry.fenced and entry.node in snap.refused_fences:
            intent = _conclude(intent, replace(entry, fenced=False), snap.refused_fences[entry.node])
            continue
        if entry.burn_in != "Pending":
            intent = _with(intent, _tested_again(snap, intent, entry))
            continue
        if snap.job.spec.warm_pool_ref is None:
            intent = _conclude(
                intent, replace(entry, burn_in="Unavailable"), "the job names no WarmPool to compare with"
            )
        elif entry.node in snap.burn_ins:
            intent = _weigh(intent, entry, snap.burn_ins[entry.node], snap.now)
    return intent


def _departure(intent: Intent, entry: Excluded) -> Departure:
    """What is remembered of the exclusion; one of an older version is as long ago as it says itself."""
    since = unix_seconds(entry.since)
    return departures.find(intent.state, entry.node) or Departure(node=entry.node, left_at=since, tested_at=since)


def _tested_again(snap: Snapshot, intent: Intent, entry: Excluded) -> Excluded:
    """The entry, with another test where one has failed and enough time has passed."""
    due = snap.pool is not None and snap.now >= departures.retest_at(_departure(intent, entry))
    if entry.burn_in not in ("Failed", "Unavailable") or not due:
        return entry
    return replace(entry, burn_in="Pending", since=timestamp(snap.now))


def readmit(snap: Snapshot, intent: Intent) -> Intent:
    """Nodes that passed their test, are not fenced, and whose probation is over are the job's to use again."""
    for entry in intent.excluded:
        node = snap.nodes.get(entry.node)
        if entry.burn_in != "Passed" or node is None or not node.ready or TAINT_FENCED in node.taints:
            continue
        if snap.now >= departures.returns_at(_departure(intent, entry)):
            said = f"{entry.node} may be used again since {clock_time(snap.now)}"
            intent = used_again(intent, entry.node, said, snap.now)
    return intent


def used_again(intent: Intent, node: str, why: str, now: float) -> Intent:
    """No longer excluded; ``why`` is told with the incident that excluded it."""
    state = departures.back(intent.state, node, now)
    return replace(
        intent,
        excluded=[one for one in intent.excluded if one.node != node],
        state=replace(state, verdicts={**state.verdicts, node: why}),
    )


def _weigh(intent: Intent, entry: Excluded, result: BurnInResult, now: float) -> Intent:
    if result.outcome == "Running":
        return intent
    ratio = result.ratio
    well = result.outcome == "Passed" and ratio is not None
    intent = replace(intent, state=departures.tested(intent.state, entry.node, now, passed=well))
    if result.outcome == "Failed":
        return _conclude(intent, replace(entry, burn_in="Unavailable"), result.message)
    if ratio is None:
        return _conclude(intent, replace(entry, burn_in="Unavailable"), "the pool has no scores to compare with")
    if result.outcome == "Slow":
        failed = replace(entry, burn_in="Failed", fenced=True)
        if entry.fenced and f"{entry.node} fenced: burn-in" in intent.state.verdicts.get(entry.node, ""):
            return _with(intent, failed)  # as before: told once
        return _conclude(intent, failed, f"burn-in on it is {ratio:.1f}x slower than its peers")
    passed = replace(entry, burn_in="Passed", fenced=False)
    return _conclude(intent, passed, f"burn-in on it is as fast as on its peers ({ratio:.1f}x)")


def _conclude(intent: Intent, entry: Excluded, why: str) -> Intent:
    word = "fenced" if entry.fenced else "not fenced"
    verdicts = {**intent.state.verdicts, entry.node: f"{entry.node} {word}: {why}"}
    return replace(
        intent,
        excluded=_with(intent, entry).excluded,
        state=replace(intent.state, verdicts=verdicts),
    )


def _with(intent: Intent, entry: Excluded) -> Intent:
    return replace(intent, excluded=[entry if one.node == entry.node else one for one in intent.excluded])


def effects(snap: Snapshot, intent: Intent, notes: Sequence[DiagnosisStatus]) -> list[Effect]:
    """Taints that are due, and burn-ins of nodes that the job has left."""
    wanted: list[Effect] = []
    busy = {pod.node for pod in snap.pods if pod.phase not in ("Succeeded", "Failed")}
    for entry in intent.excluded:
        node = snap.nodes.get(entry.node)
        if node is None:
            continue
        ours = _incident(entry.node, notes, snap.job.metadata.name)
        if entry.fenced and TAINT_FENCED not in node.taints:
            wanted.append(TaintNode(entry.node, TAINT_FENCED, ours))
        if entry.burn_in == "Passed" and node.taints.get(TAINT_FENCED) == ours:
            wanted.append(UntaintNode(entry.node, TAINT_FENCED))
        if entry.burn_in == "Pending" and node.ready and entry.node not in busy and snap.pool is not None:
            wanted.append(BurnIn(entry.node, entry.since))
    return wanted


def _incident(node: str, notes: Sequence[DiagnosisStatus], job: str) -> str:
    """The taint's value: the incident that excluded the node."""
    return next((note.id for note in notes if note.node == node), job)


def annotate(notes: Sequence[DiagnosisStatus], intent: Intent) -> list[DiagnosisStatus]:
    """The notes with what the witness says of their nodes, once it has spoken and the incident is over."""
    said = intent.state.verdicts
    return [
        replace(note, result=f"{note.result}; {said[note.node]}")
        if note.state == "Resolved" and note.node in said and said[note.node] not in note.result
        else note
        for note in notes
    ]
