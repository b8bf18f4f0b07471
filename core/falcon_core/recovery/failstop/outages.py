"""Wait for what lies outside the job, such as shared storage, credentials or DNS, while several nodes miss it at once.

A node that alone misses a folder may be at fault itself. Where ``ENOUGH_NODES`` say so in one failure, or all nodes of
a smaller job, neither a node nor the program is. The ranks are started again after 1, 2, 4 … 300 s, until they train
or ``Policy.repeated.outage_seconds`` have passed. None of these starts counts in the budget of restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from falcon_core.errors.table import ErrorClass
from falcon_core.recovery.failstop.faults import blamed_node, others_live, own_error
from falcon_core.recovery.failstop.output_evidence import words
from falcon_core.recovery.model.failure import Fault, Outage
from falcon_core.recovery.model.observation import RESTORE_SECONDS, Look, Observation
from falcon_core.recovery.repairs.by_class import passes
from falcon_core.recovery.repairs.restart_budget import SERIES_SECONDS

ENOUGH_NODES: Final = 3
FIRST_WAIT_SECONDS: Final = 1.0  # most outages of storage are over in seconds
LONGEST_WAIT_SECONDS: Final = 300.0
MOST_NODES: Final = 3  # that are named
DAY_SECONDS: Final = 86_400.0
LIKE_FRACTION: Final = 0.25  # of the running time of two starts that failed at the same place
replace = msgspec.structs.replace


def may_be_outside(fault: Fault, look: Look) -> bool:
    """Check whether a failure's cause lies outside the job if its other nodes show it as well."""
    kind = look.policy.judge.get(fault.error_class)
    if fault.hearsay or not look.policy.repeated.outage_seconds or len(_nodes_of(look.obs)) < 2:
        return False
    return _lies_outside(kind, fault.error)


def others_may_follow(look: Look, faults: Sequence[Fault]) -> bool:
    """Check whether too few nodes have shown the failure for an outage, and others may do so in a moment.

    A job that has done iterations is restarted at once: what is still away then shows at the start of all nodes.
    """
    obs = look.obs
    if not may_be_outside(faults[0], look) or len(_nodes_outside(look, faults)) >= _enough_nodes(obs):
        return False
    return others_live(obs, faults[0]) and not obs.iterations if obs.running else _others_start(obs, faults)


def noted(known: Outage | None, look: Look, faults: Sequence[Fault]) -> Outage | None:
    """Return the outage that this failure shows, or goes on with; None where what failed lies in the job.

    ``known``: the newest outage. ``faults``: the failure's own fault first.
    """
    obs = look.obs
    if not may_be_outside(faults[0], look):
        return None
    nodes = _nodes_outside(look, faults)
    if len(nodes) < _enough_nodes(obs):
        return None
    if known is None or not _goes_on(known, obs):
        known = Outage(since=obs.now, at=obs.now)
    else:
        known = replace(known, at=obs.now, tries=known.tries + 1)
    return replace(
        known,
        iterations=max(known.iterations, obs.iterations if obs.running else 0),
        ran_seconds=obs.running_seconds if obs.running else known.ran_seconds,
        nodes=sorted(nodes)[:MOST_NODES],
        total=len(nodes),
    )


def next_try(outage: Outage, outage_seconds: float) -> float:
    """Return when the ranks are started again (unix seconds); the last try is at the end of the time."""
    wait_seconds = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(outage.tries, 10))
    return min(outage.at + wait_seconds, outage.since + outage_seconds)


def standing(known: Outage | None, obs: Observation) -> Outage | None:
    """Return the newest outage; None where the job has since trained further than it had when the outage came.

    Generations count their iterations from their own start. Without this, the first checkpoint of any later generation
    would be at the same iteration as the failure, and an outage of a moment would seem to have lasted since then.
    """
    if known is None or not obs.running or obs.iterations <= known.iterations + 1:
        return known
    return None


def _lies_outside(kind: ErrorClass | None, error: str) -> bool:
    """Check whether an error of this class may come from outside the job. ``error``: as of ``Fault``.

    A program that cannot even be started, such as one with a wrong path in its command, raises no exception.
    """
    if kind is None:
        return False
    is_raised = not kind.permanent or error not in ("", kind.name)
    return passes(kind) or (kind.shared and is_raised)


def _enough_nodes(obs: Observation) -> int:
    """Return on how many nodes such errors have to come at once before their cause lies outside the job."""
    return min(ENOUGH_NODES, len(_nodes_of(obs)))


def _others_start(obs: Observation, faults: Sequence[Fault]) -> bool:
    """Check whether other pods have yet to come as far as those that failed before their ranks began."""
    failed = {fault.replica for fault in faults}
    return any(not member.started and member.node and member.replica not in failed for member in obs.members)


def _nodes_of(obs: Observation) -> set[str]:
    return {member.node for member in obs.members} - {""}


def _nodes_outside(look: Look, faults: Iterable[Fault]) -> set[str]:
    """Return the nodes of which a rank or a pod has ended for a reason that may lie outside the job."""
    judge = look.policy.judge
    nodes = {fault.node for fault in faults if _lies_outside(judge.get(fault.error_class), fault.error)}
    for rank in look.obs.ranks:
        if rank.process != "Ended" or not rank.exit_code:
            continue
        said = words(rank, judge)
        kind = judge.get(said.error_class)
        if _lies_outside(kind, own_error(said, kind)):
            nodes.add(blamed_node(rank, said, look.obs))
    return nodes - {""}


def _goes_on(outage: Outage, obs: Observation) -> bool:
    """Check whether a failure is of the same outage: the job has not come any further since the failure before.

    A failure at the same iteration after a resume is the same one, as of a disk that is full at each checkpoint. A job
    whose iterations are not seen has come further if it ran for longer than any wait, and not as long as last time.
    """
    if obs.running and obs.iterations:
        # Failures that follow each other within minutes save nothing in between, at whichever iteration they come.
        if obs.iterations <= outage.iterations and obs.now - outage.at < SERIES_SECONDS:
            return True
        return abs(obs.iterations - outage.iterations) <= 1 and obs.now - outage.at < DAY_SECONDS
    if obs.running and not outage.iterations and not any(rank.tracked for rank in obs.ranks):
        ran = obs.running_seconds
        like = abs(ran - outage.ran_seconds) <= LIKE_FRACTION * outage.ran_seconds
        return ran < LONGEST_WAIT_SECONDS or (like and obs.now - outage.at < DAY_SECONDS)
    return obs.now - outage.at < LONGEST_WAIT_SECONDS + RESTORE_SECONDS
