"""Explain why a named node is not replaced, and what would change that."""

from __future__ import annotations

from falcon_core.model import Cause, Evidence
from falcon_core.recovery import Culprit, Policy, SlowIncident
from falcon_core.recovery.strategies import replace_node
from falcon_core.recovery.views import evidence_suffices
from falcon_operator.status.text.probes import may_be_tested

_LOW = "set spec.mitigation.confidence: Low"
_OF_THE_WORK = (Evidence.WORK_MAY_MOVE, Evidence.FOLLOWS_THE_ROLE, Evidence.TESTED_AS_FAST)


def is_kept(slow: SlowIncident, policy: Policy) -> bool:
    """Check whether the culprit's node would be replaced in the end, were it known to be at fault."""
    replaces = any(name == replace_node.TYPE for name, _ in policy.strategies)
    return replaces and slow.node_fault.evidence is not None and not evidence_suffices(slow.node_fault.evidence, policy)


def cause_of(slow: SlowIncident, culprit: Culprit) -> Cause:
    """Return the cause for the diagnosis: a rank whose share of the work may be why is an imbalance."""
    of_the_work = slow.node_fault.evidence in _OF_THE_WORK
    return Cause.IMBALANCE if of_the_work and culprit.cause is Cause.UNKNOWN else culprit.cause


def imbalance_words(slow: SlowIncident, culprit: Culprit, policy: Policy) -> str:
    """Say why the rank's share of the work may be what is slow."""
    stage = f" (pipeline stage {policy.stage_of(culprit.rank) + 1} of {policy.stages})" if policy.stages > 1 else ""
    who = f"imbalance: rank {culprit.rank}{stage}"
    if slow.node_fault.evidence is Evidence.FOLLOWS_THE_ROLE:
        return f"{who} has more work than its peers: its replica was as slow on another node"
    if slow.node_fault.evidence is Evidence.TESTED_AS_FAST:
        tested = "its machine computes as fast as theirs by itself"
        return f"{who} may have more work than its peers: {tested}, and no counter shows another cause"
    return f"{who} may have more work than its peers: {_how_work_moves(culprit)}, and no counter shows another cause"


def doubt_words(slow: SlowIncident, culprit: Culprit, policy: Policy) -> str:
    """Say why the culprit's node is not replaced, and what would change that."""
    node, rank = culprit.node, culprit.rank
    shows = "a counter, or a measurement during a pause, shows" if may_be_tested(policy) else "a counter shows"
    match slow.node_fault.evidence:
        case Evidence.FOLLOWS_THE_ROLE:
            return (
                f"not replaced: rank {rank} was as slow on its previous node, so {node} is hardly the cause; {node} is"
                f" replaced when {_measured(policy)} that it is slow by itself; to replace it anyway, {_LOW}"
            )
        case Evidence.PROGRAM:
            return (
                "not replaced: the program itself is the cause, and would be as slow on another node; gc.freeze()"
                " after the model is built, or gc.disable() and gc.collect() at the same step in all ranks, keep"
                f" collections short; to replace {node} anyway, {_LOW}"
            )
        case Evidence.SINCE_START:
            return (
                f"not replaced: rank {rank} was never seen healthy on {node}, so its share of the work may be larger;"
                f" {node} is replaced when {shows} a cause there; to replace it now, {_LOW}"
            )
        case Evidence.TESTED_AS_FAST:
            return (
                f"not replaced: {node} computes as fast as its peers' nodes by itself, so rank {rank}'s share of the"
                f" work may be larger; {node} is replaced when {_condition(slow, 'a counter shows')}; to replace it"
                f" now, {_LOW}"
            )
        case _:
            return (
                f"not replaced: rank {rank} may be slow because it has more work, as work moves between the ranks of"
                f" this job; {node} is replaced when {_condition(slow, shows)}; to replace it now, {_LOW}"
            )


def _measured(policy: Policy) -> str:
    return "a measurement during a pause shows" if may_be_tested(policy) else "a test shows"


def _condition(slow: SlowIncident, shows: str) -> str:
    if slow.node_fault.stay_iterations:
        return f"the slowdown has stayed there for {slow.node_fault.stay_iterations} iterations, or {shows} a cause"
    return (
        f"{shows} a cause, or the slowdown has stayed there far longer than slowdowns stay on one node of this job"
        " (how long that is, is not known yet)"
    )


def _how_work_moves(culprit: Culprit) -> str:
    if culprit.work == "Hidden":
        return "how much a rank of this job has to do depends on the data"
    return "slowdowns have moved from node to node in this job before"
