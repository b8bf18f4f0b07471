"""Exclude nodes for one job, and fence them for all jobs where a witness outside the job agrees.

Such witnesses are the node's own NotReady and a burn-in pod that the operator runs on the node once the job has left
(docs/architecture.md §11). A node that was fenced for being NotReady gets its burn-in when it is Ready again, and is
released if it passes. Without a pool there is no test: then the node is released once it has been Ready for a while. A
test that failed is repeated as long as the job lives, since most slow nodes recover. A node that passed may be used by
the job again after a probation (``recovery.history.left_nodes``).

The taint's value names the job that owns it, so that a job never removes another job's fence. A fence that another
actor removed is not set again before another test has failed. An exclusion belongs to a node's uid: a new node of the
same name is not excluded. A node that reports grave trouble of its hardware is neither tested nor released: a short
test finds no broken link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from falcon_core.recovery import Command, Departure, Exclusion, Member, Replace
from falcon_core.recovery.views import left_nodes
from falcon_operator.api.common import TAINT_FENCED
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.trainingrun import NodeVerdict
from falcon_operator.base.effects import BurnIn, Effect, TaintNode, UntaintNode
from falcon_operator.base.ports import NodeView
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.snapshot import BurnInResult, Snapshot
from falcon_operator.intent.observation import job_observation

VERDICTS = 32  # that are remembered
DETAIL_LENGTH = 300
# A node that was NotReady is tested when it has been Ready for so long; where nothing can test it, it is well then.
STEADY_SECONDS = 60.0
RETURNED = ("ReadyAgain", "LiftedByHand", "UsableAgain")  # verdicts after which a node may be used where nothing tests
VALUE_LENGTH = 63  # of a taint, at most
replace = msgspec.structs.replace


def fence_owner(job: TrainingJob) -> str:
    """Return the taint's value: as much of the job's name as fits, and the job's uid."""
    uid = job.metadata.uid
    return f"{job.metadata.name[: VALUE_LENGTH - len(uid) - 1]}.{uid}"


def fence_lost_nodes(intent: Intent, commands: Sequence[Command], members: Sequence[Member], now: float) -> Intent:
    """Fence a lost node at once if it is NotReady. ``members`` are the members before the commands."""
    for command in commands:
        if not isinstance(command, Replace) or not command.node_not_ready:
            continue
        exclusion = find(intent, members[command.replica].node)
        if exclusion is not None:
            intent = _conclude(intent, replace(exclusion, fenced=True), "NotReady", now)
    return intent


def find(intent: Intent, node: str) -> Exclusion | None:
    """Return the exclusion of the node."""
    return next((exclusion for exclusion in intent.membership.exclusions if exclusion.node == node), None)


def follow_nodes(snap: Snapshot, intent: Intent) -> Intent:
    """Take over the present state of the excluded nodes.

    That is whether a node was replaced by a new one of the same name, and whether it is still fenced.
    """
    for exclusion in intent.membership.exclusions:
        node = snap.nodes.get(exclusion.node)
        if node is None:
            # It will not come back as a spare: the price of a spare does not count it.
            intent = replace(intent, recovery=left_nodes.deleted(intent.recovery, exclusion.node))
            continue
        # A new machine has the name of the old one, and none of its faults.
        if exclusion.node_uid not in ("", node.uid):
            intent = _forget(intent, exclusion, snap.now)
            continue
        ours = node.taints.get(TAINT_FENCED) == fence_owner(snap.job)
        # Falcon did not remove the taint, so a person did, and the person's word holds.
        if exclusion.fenced and exclusion.tainted and TAINT_FENCED not in node.taints:
            lifted = replace(exclusion, fenced=False, tainted=False)
            intent = _conclude(intent, lifted, "LiftedByHand", snap.now)
            continue
        tainted = exclusion.fenced and (exclusion.tainted or ours)
        intent = _with(intent, replace(exclusion, node_uid=node.uid, tainted=tainted))
    return intent


def apply_burn_in_results(snap: Snapshot, intent: Intent) -> Intent:
    """Take over the outcome of every burn-in that has ended, and the circuit breaker's refusals of fences."""
    intent = follow_nodes(snap, intent)
    for exclusion in intent.membership.exclusions:
        node = exclusion.node
        if exclusion.fenced and node in snap.refused_fences:
            refused = snap.refused_fences[node]
            intent = _conclude(intent, replace(exclusion, fenced=False), "BreakerOpen", snap.now, detail=refused)
        # A short test does not find a broken link, so grave trouble is waited out.
        elif node in snap.troubled:
            continue
        # Without a pool there is no test. To have been Ready for a while is the only evidence.
        elif exclusion.fenced and snap.job.spec.warm_pool_ref is None and _is_steady(snap, node):
            intent = _conclude(intent, replace(exclusion, test="Unavailable", fenced=False), "ReadyAgain", snap.now)
        elif exclusion.test != "Pending":
            intent = _with(intent, _tested_again(snap, intent, exclusion))
        elif snap.job.spec.warm_pool_ref is None:
            intent = _conclude(intent, replace(exclusion, test="Unavailable"), "NoPool", snap.now)
        elif node in snap.burn_ins:
            intent = _weigh(intent, exclusion, snap.burn_ins[node], snap.now)
    return intent


def readmit(snap: Snapshot, intent: Intent) -> Intent:
    """End the exclusion of nodes that passed their test, are not fenced, and whose probation is over."""
    for exclusion in intent.membership.exclusions:
        node = snap.nodes.get(exclusion.node)
        # Another job may have fenced the node since it passed the test.
        if exclusion.test != "Passed" or node is None or not node.ready or TAINT_FENCED in node.taints:
            continue
        if exclusion.node in snap.troubled:
            continue
        if snap.now >= left_nodes.returns_at(_departure(intent, exclusion)):
            intent = use_again(intent, exclusion, "UsableAgain", snap.now)
    return intent


def has_returned(intent: Intent, exclusion: Exclusion) -> bool:
    """Check whether an excluded node is well as far as is known without a test: it came back, or a person says so."""
    key = (exclusion.node, exclusion.incident)
    said = [verdict.outcome for verdict in intent.verdicts if (verdict.node, verdict.incident) == key]
    return bool(said) and said[-1] in RETURNED


def use_again(
    intent: Intent, exclusion: Exclusion, outcome: Literal["UsableAgain", "UsedSlow"], now: float, detail: str = ""
) -> Intent:
    """End the exclusion of the node."""
    intent = _conclude(intent, replace(exclusion, fenced=False), outcome, now, detail=detail)
    return _forget(intent, exclusion, now)


def _forget(intent: Intent, exclusion: Exclusion, now: float) -> Intent:
    kept = [other for other in intent.membership.exclusions if other.node != exclusion.node]
    return replace(
        intent,
        membership=replace(intent.membership, exclusions=kept),
        recovery=left_nodes.back(intent.recovery, exclusion.node, now),
    )


def _is_steady(snap: Snapshot, name: str) -> bool:
    node = snap.nodes.get(name)
    return node is not None and node.ready and snap.now - node.ready_changed_unix >= STEADY_SECONDS


def effects(snap: Snapshot, intent: Intent) -> list[Effect]:
    """Return the taints to set and remove, and the burn-ins of nodes that the job has left."""
    if not intent.membership.exclusions:
        return []
    tested = snap.pool is not None and not job_observation.pool_messages(snap)
    # Processes of the job that are still there would slow the test.
    busy = {pod.node for pod in snap.pods if pod.phase not in ("Succeeded", "Failed")}
    wanted: list[Effect] = []
    for exclusion in intent.membership.exclusions:
        node = snap.nodes.get(exclusion.node)
        if node is not None:
            wanted += _taints(exclusion, node, fence_owner(snap.job))
            # A machine that has just booted is busy with that: a test would be slow.
            testable = _is_steady(snap, node.name) and node.name not in busy and node.name not in snap.troubled
            if exclusion.test == "Pending" and testable and tested:
                wanted.append(BurnIn(node.name, exclusion.test_since))
    return wanted


def _taints(exclusion: Exclusion, node: NodeView, owner: str) -> list[Effect]:
    if exclusion.fenced and not exclusion.tainted and TAINT_FENCED not in node.taints:
        return [TaintNode(node.name, TAINT_FENCED, owner)]
    # Another job's fence has another value, and stays.
    if not exclusion.fenced and node.taints.get(TAINT_FENCED) == owner:
        return [UntaintNode(node.name, TAINT_FENCED)]
    return []


def _departure(intent: Intent, exclusion: Exclusion) -> Departure:
    """Return what the recovery remembers of the excluded node."""
    known = left_nodes.find(intent.recovery, exclusion.node)
    return known or Departure(node=exclusion.node, left_at=exclusion.at, tested_at=exclusion.test_since)


def next_test(intent: Intent, exclusion: Exclusion) -> float:
    """Return when a node that has not passed its newest test will be tested again (unix seconds)."""
    return left_nodes.retest_at(_departure(intent, exclusion))


def _tested_again(snap: Snapshot, intent: Intent, exclusion: Exclusion) -> Exclusion:
    """Ask for another test where a test has failed and enough time has passed."""
    due = snap.pool is not None and snap.now >= next_test(intent, exclusion)
    if exclusion.test not in ("Failed", "Unavailable") or not due:
        return exclusion
    return replace(exclusion, test="Pending", test_since=snap.now)


def _weigh(intent: Intent, exclusion: Exclusion, result: BurnInResult, now: float) -> Intent:
    if result.outcome == "Running":
        return intent
    ratio = None if result.ratio is None else round(result.ratio, 2)
    # A test without peers, or with others on its CPUs, is no evidence in either direction.
    says_nothing = result.outcome == "Disturbed" or (ratio is None and result.outcome != "Failed")
    passed = None if says_nothing else result.outcome == "Passed"
    intent = replace(intent, recovery=left_nodes.tested(intent.recovery, exclusion.node, now, passed=passed))
    # An outcome without a verdict leaves a fence as it is: only a comparison may lift or set it.
    unavailable = replace(exclusion, test="Unavailable")
    if result.outcome == "Failed":
        return _conclude(intent, unavailable, "NoScore", now, detail=result.message)
    if result.outcome == "Disturbed":
        return _conclude(intent, unavailable, "Disturbed", now, detail=result.message)
    if ratio is None:
        return _conclude(intent, unavailable, "NoPeers", now)
    if result.outcome == "Passed":
        return _conclude(intent, replace(exclusion, test="Passed", fenced=False), "AsFast", now, ratio=ratio)
    failed = replace(exclusion, test="Failed", fenced=True)
    before = next((known for known in reversed(intent.verdicts) if known.node == exclusion.node), None)
    if exclusion.fenced and before is not None and before.outcome == "Slower":
        return _with(intent, failed)  # the same outcome as before is reported once
    return _conclude(intent, failed, "Slower", now, ratio=ratio)


def _conclude(
    intent: Intent,
    exclusion: Exclusion,
    outcome: Literal[
        "NotReady",
        "Slower",
        "AsFast",
        "Disturbed",
        "NoScore",
        "NoPeers",
        "NoPool",
        "BreakerOpen",
        "ReadyAgain",
        "LiftedByHand",
        "UsableAgain",
        "UsedSlow",
    ],
    now: float,
    *,
    ratio: float | None = None,
    detail: str = "",
) -> Intent:
    verdict = NodeVerdict(
        node=exclusion.node,
        incident=exclusion.incident,
        outcome=outcome,
        at=now,
        ratio=ratio,
        fenced=exclusion.fenced,
        detail=detail[:DETAIL_LENGTH],
    )
    # A repeated outcome replaces the last, so that the list names each of them once.
    same = (verdict.node, verdict.incident, verdict.outcome)
    others = [known for known in intent.verdicts if (known.node, known.incident, known.outcome) != same]
    return replace(_with(intent, exclusion), verdicts=[*others, verdict][-VERDICTS:])


def _with(intent: Intent, exclusion: Exclusion) -> Intent:
    membership = intent.membership
    exclusions = [exclusion if other.node == exclusion.node else other for other in membership.exclusions]
    return replace(intent, membership=replace(membership, exclusions=exclusions))
