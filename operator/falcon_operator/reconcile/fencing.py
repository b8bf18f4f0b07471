"""Excluding a node is the job's matter; fencing it for all takes a witness outside the job (DESIGN §2, State, safety).

Witnesses are the node's own NotReady and a burn-in pod that the operator runs there once the job has left. A node that
was fenced for being NotReady gets its burn-in when it is back, and is released if it passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.recovery.observation import Action, Replace
from falcon_operator.api import TAINT_FENCED, DiagnosisStatus, Excluded, Member
from falcon_operator.reconcile.effects import BurnIn, Effect, TaintNode, UntaintNode
from falcon_operator.reconcile.intents import Intent
from falcon_operator.reconcile.snapshot import Score, Snapshot

SLOWER = 1.5  # times slower than the median of the pool's nodes: the median rule's own factor
replace = msgspec.structs.replace


def witnessed(intent: Intent, actions: Sequence[Action], members: Sequence[Member]) -> Intent:
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


def judge(snap: Snapshot, intent: Intent) -> Intent:
    """Take over the outcome of every burn-in that is done, and the circuit breaker's word on a fence."""
    for entry in intent.excluded:
        if entry.fenced and entry.node in snap.refused_fences:
            intent = _conclude(intent, replace(entry, fenced=False), snap.refused_fences[entry.node])
            continue
        if entry.burn_in != "Pending":
            continue
        if snap.job.spec.warm_pool_ref is None:
            intent = _conclude(
                intent, replace(entry, burn_in="Unavailable"), "the job names no WarmPool to compare with"
            )
        elif entry.node in snap.burn_ins:
            intent = _weigh(intent, entry, snap.burn_ins[entry.node])
    return intent


def _weigh(intent: Intent, entry: Excluded, score: Score) -> Intent:
    if score.state == "Running":
        return intent
    if score.state == "Failed" or not score.gflops:
        return _conclude(intent, replace(entry, burn_in="Unavailable"), score.message or "the burn-in gave no score")
    if not score.peers_gflops:
        return _conclude(intent, replace(entry, burn_in="Unavailable"), "the pool has no scores to compare with")
    ratio = score.peers_gflops / score.gflops
    if ratio > SLOWER:
        failed = replace(entry, burn_in="Failed", fenced=True)
        return _conclude(intent, failed, f"burn-in on it is {ratio:.1f}x slower than its peers")
    passed = replace(entry, burn_in="Passed", fenced=False)
    return _conclude(intent, passed, f"burn-in on it is as fast as on its peers ({ratio:.1f}x)")


def _conclude(intent: Intent, entry: Excluded, why: str) -> Intent:
    word = "fenced" if entry.fenced else "not fenced"
    verdicts = {**intent.state.verdicts, entry.node: f"{entry.node} {word}: {why}"}
    return replace(
        intent,
        excluded=[entry if one.node == entry.node else one for one in intent.excluded],
        state=replace(intent.state, verdicts=verdicts),
    )


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
