"""Find groups of ranks whose collectives take longer than those of comparable groups (FALCON §4.3).

A link that was slow before a generation began makes no onset, and the agents take its transfers for healthy. Only the
other groups of its kind are left to compare with. They have the same part in the job's parallelism and as many members
on as many nodes, and their calls put as many bytes on a link. A group is suspected if all of these conditions hold:

- **Longer.** Its transfers take longer than ``spec.detection.suspicionPercent`` of the median of the others' of its
  kind. The last rank to arrive in a call does not wait, so the shortest time among the members is the transfer.
- **Worth it.** Iterations would be shorter by more than ``verify`` if its transfers were as short as the others'.
- **Lasting.** Both have held in ``REPORTS`` reports that share no iterations.

Once a generation all ranks are asked, as soon as their healthy times have settled. A suspicion is not shown, and no
repair follows from it. It only starts a measurement of all links during a pause (``probe_controller``), which names the
link. If no link is slow, or if links cannot be measured, the suspicion is dropped for this generation. In a job whose
links cannot be measured groups are not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from falcon_core.recovery.diagnosis import slow_from_start
from falcon_core.recovery.diagnosis.communicator_progress import communicators, place
from falcon_core.recovery.diagnosis.slow_links import network_seen
from falcon_core.recovery.diagnosis.stragglers import no_longer_slow
from falcon_core.recovery.model.observation import Look, Observation, RankSeen
from falcon_core.recovery.model.slowdown import NAMED_RANKS, SlowIncident, SuspectedGroup
from falcon_core.recovery.model.state import RecoveryState, with_leader, without_leader
from falcon_core.recovery.model.suspects import Compared
from falcon_core.recovery.probe import probe_targets
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from falcon_core.signals.job.communicators import Communicator
from falcon_core.stats.medians import median
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS, CommSignals

REPORTS: Final = 3  # apart by RECENT_ITERATIONS or more
PATIENCE_ITERATIONS: Final = 4 * SETTLED_ITERATIONS  # after which a rank that does not report it is not waited for
replace = msgspec.structs.replace


class _Kind(NamedTuple):
    """What groups have in common whose transfers should take equally long."""

    part: str  # in the job's parallelism
    members: int
    nodes: int
    link_bytes: int


class _Group(NamedTuple):
    comm: str
    members: tuple[int, ...]
    op: int
    transfer_ns: float  # of an iteration


Kinds = dict[_Kind, list[_Group]]


class Slower(NamedTuple):
    """A group whose transfers take longer than those of its kind."""

    comm: str
    members: tuple[int, ...]
    op: int
    excess_ns: float  # of an iteration, over the median of the others
    siblings: int  # groups that it was compared with


def look(state: RecoveryState, look: Look) -> RecoveryState:
    """Return the state with the group that has been slower than its kind at every look at this generation."""
    if not _is_wanted(state, look):
        return state
    before = _of_generation(state, look.obs) or Compared(generation=look.obs.generation, iteration=look.obs.iterations)
    is_late = look.obs.iterations >= before.iteration + PATIENCE_ITERATIONS
    groups = _known_groups(look)
    if groups is None:
        return _with_compared(state, replace(before, over=is_late))
    found = slowest(groups, look)
    if found is None or before.comm not in ("", found.comm):
        # A group that was not slower at a look is counted from zero, as long as reports are requested.
        over = is_late or not before.comm
        return _with_compared(state, replace(before, comm="", reports=0, over=over))
    newest = min(rank.sent.iterations for rank in look.obs.ranks)
    # Reports that share iterations would count one observation several times.
    if not before.comm or newest >= before.counted_iteration + RECENT_ITERATIONS:
        before = replace(before, comm=found.comm, reports=before.reports + 1, counted_iteration=newest)
    return _with_compared(state, before)


def asked(state: RecoveryState, look: Look) -> list[int]:
    """Return the ranks whose detail is needed before groups can be compared, in ascending order."""
    return sorted(rank.rank for rank in look.obs.ranks if rank.tracked) if _is_wanted(state, look) else []


def suspicion(state: RecoveryState, look: Look) -> SlowIncident | None:
    """Return a slowdown without an id since the generation's first iteration; None while no group is suspected."""
    compared = _of_generation(state, look.obs)
    if compared is None or compared.reports < REPORTS or not _is_wanted(state, look):
        return None
    groups, slow_ns = _known_groups(look), look.obs.iteration_ns(RECENT_ITERATIONS, fresh=True)
    found = None if groups is None else slowest(groups, look)
    if found is None or slow_ns is None:
        return None
    slow = slow_from_start.slowdown(look.obs, healthy_ns=round(slow_ns - found.excess_ns), slow_ns=round(slow_ns))
    return replace(slow, subject=_link(found, look.obs))


def follow(state: RecoveryState, slow: SlowIncident, look: Look) -> RecoveryState:
    """Keep a suspicion for as long as links may show whether it is right, and nothing else is slow."""
    assert slow.link is not None
    tries = slow.probed.tries if slow.probed is not None else 0
    measured = slow.probed is not None and slow.probed.found == "Alike"
    measured = measured or (tries >= probe_targets.MOST_TRIES and state.probe is None)
    # The links were measured and are alike, or can no longer be measured: the suspicion has no way to be proven.
    if measured or not _may_be_measured(look) or slow.onset.generation != look.obs.generation:
        return _forget(state, look.obs)
    well = no_longer_slow(slow, look)
    # An onset or a slow rank explains the slowdown better than a group does.
    if well or look.obs.reports.has_onset.any() or slow_from_start.asked(state, look.obs):
        return _with_compared(without_leader(state), None)  # groups are compared again when that is over
    groups = _known_groups(look)
    found = None if groups is None else slowest(groups, look)
    if found is not None and found.comm != slow.link.comm:
        return _forget(state, look.obs)
    return with_leader(state, slow)


def slowest(kinds: Kinds, look: Look) -> Slower | None:
    """Return the group that makes iterations longest, beyond those of its kind; None where no group does."""
    slower = [
        Slower(group.comm, group.members, group.op, group.transfer_ns - others_ns, len(groups) - 1)
        for groups in kinds.values()
        if len(groups) > 1
        for group in groups
        if group.transfer_ns > look.policy.suspicion * (others_ns := _median_of_others(group, groups))
    ]
    iteration_ns = look.obs.iteration_ns(RECENT_ITERATIONS, fresh=True) or 0.0
    worth = [each for each in slower if each.excess_ns > look.policy.verify * max(0.0, iteration_ns - each.excess_ns)]
    return max((each for each in worth if each.excess_ns < iteration_ns), key=lambda each: each.excess_ns, default=None)


def _median_of_others(group: _Group, groups: list[_Group]) -> float:
    return median([other.transfer_ns for other in groups if other is not group])


def _known_groups(look: Look) -> Kinds | None:
    """Return the groups that span several nodes, by kind; None unless all members report what their calls take."""
    if len(look.obs.ranks) < look.policy.world_size or not all(map(_is_known, look.obs.ranks)):
        return None
    # Groups within one node use no link between nodes.
    node_of = {rank.rank: look.obs.members[rank.replica].node for rank in look.obs.ranks}
    kinds: Kinds = defaultdict(list)
    for group, signals in _reported(look).items():
        nodes = len({node_of.get(rank, "") for rank in group.members})
        if nodes > 1 and len(signals) < len(group.members):
            return None  # its calls were not in the newest cycle of every member
        if nodes > 1:
            kind, known = _group(group, signals, nodes)
            kinds[kind].append(known)
    return kinds


def _reported(look: Look) -> dict[Communicator, list[CommSignals]]:
    """Return the reports of the members of each group whose calls they make in an iteration."""
    names = communicators(look)
    reported: defaultdict[Communicator, list[CommSignals]] = defaultdict(list)
    for rank in look.obs.ranks:
        for comm in rank.sent.comms:
            named = names.get((rank.rank, comm.comm))
            if named is not None and comm.healthy_ns and comm.link_bytes:
                reported[named].append(comm)
    return reported


def _group(group: Communicator, signals: Sequence[CommSignals], nodes: int) -> tuple[_Kind, _Group]:
    """Return a group and its kind; ``signals``: of all members, on that many nodes."""
    transfer_ns = sum(min(part) for part in zip(*(comm.healthy_ns for comm in signals), strict=False))
    kind = _Kind(group.name.partition(" group of ")[0], len(group.members), nodes, signals[0].link_bytes or 0)
    # A member that waits says what it makes next, where that is known; the others, what most of an iteration is.
    op = Counter(comm.op for comm in signals if comm.op).most_common(1)
    return kind, _Group(group.name, group.members, op[0][0] if op else 0, float(transfer_ns))


def _link(found: Slower, obs: Observation) -> SuspectedGroup:
    ranks = sorted((rank for rank in obs.ranks if rank.rank in found.members), key=lambda rank: rank.rank)
    return SuspectedGroup(
        ranks=[place(obs, rank) for rank in ranks[:NAMED_RANKS]],
        members=len(ranks),
        comm=found.comm,
        op=found.op,
        excess_ns=round(found.excess_ns),
        compute_growth=1.0,
        network=network_seen(obs.members, {rank.replica for rank in ranks}),
        siblings=found.siblings,
    )


def _forget(state: RecoveryState, obs: Observation) -> RecoveryState:
    compared = _of_generation(state, obs) or Compared(generation=obs.generation)
    return _with_compared(without_leader(state), replace(compared, over=True))


def _with_compared(state: RecoveryState, compared: Compared | None) -> RecoveryState:
    return replace(state, suspicions=replace(state.suspicions, compared=compared))


def _of_generation(state: RecoveryState, obs: Observation) -> Compared | None:
    compared = state.suspicions.compared
    return compared if compared is not None and compared.generation == obs.generation else None


def _is_wanted(state: RecoveryState, look: Look) -> bool:
    """Check whether groups are still to be compared in this generation, and all is well otherwise."""
    compared = _of_generation(state, look.obs)
    if look.obs.iterations < SETTLED_ITERATIONS or (compared is not None and compared.over):
        return False
    if not look.obs.running or state.stop is not None or state.slowdowns or look.obs.shared_unevenly:
        return False
    return _may_be_measured(look) and not look.obs.reports.has_onset.any()


def _may_be_measured(look: Look) -> bool:
    if look.policy.layout is None or not _has_siblings(look.policy.layout) or probe_targets.forbidden(look.policy):
        return False
    return not probe_targets.never(probe_targets.Target("Links"), look)


def _has_siblings(layout: Parallelism) -> bool:
    """Check whether any part of the parallelism has more than one group."""
    degrees = layout.tensor, layout.context, layout.expert, layout.data, layout.pipeline
    return any(1 < degree < layout.world for degree in degrees)


def _is_known(rank: RankSeen) -> bool:
    reports = rank.fresh and rank.process == "Running" and rank.sent.detailed
    return reports and any(comm.healthy_ns for comm in rank.sent.comms)
