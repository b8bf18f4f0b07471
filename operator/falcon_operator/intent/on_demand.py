"""Delay a planned restart until the ranks have saved the checkpoint that is requested for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from falcon_core.recovery import (
    Look,
    Member,
    Membership,
    Observation,
    Policy,
    Step,
    Swap,
    checkpoint_on_demand,
    machine,
)
from falcon_core.wire.saves.checkpoint import Held, newest_of_all, saved_at, spread
from falcon_operator.intent import copies
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation.forecasts import seconds_left

WAITING = "ready; all ranks save a checkpoint first"
replace = msgspec.structs.replace


def recover(snap: Snapshot, intent: Intent, obs: Observation, policy: Policy) -> tuple[Intent, Step]:
    """Run one step of the recovery's ladders; a restart that no failure asks for waits for a checkpoint.

    While it waits, the ladders see that ranks save, and the prepared pods as not ready yet. So everything else is
    decided as ever.
    """
    step = machine.step(intent.recovery, Look(obs, policy))
    # Only a planned restart can wait. After a failure the ranks can save nothing any more.
    if not obs.running or not step.is_planned_restart:
        return _ahead(snap, intent, policy), step
    # A node that ends soon leaves no time to wait for a checkpoint.
    urgent = any(member.notice is not None and member.notice.urgent for member in obs.members)
    swaps = [command for command in step.commands if isinstance(command, Swap)]
    moving = sum(role != of for swap in swaps for role, of in enumerate(swap.pods_of))
    intent, waits = before_restart(snap, intent, urgent=urgent, leaving=len(obs.prepared), moving=moving)
    if not waits:
        return intent, step
    # Decide again as if no pod were ready: then no ladder restarts the ranks while they save.
    prepared = {
        replica: replace(seen, ready=False, message=WAITING) if seen.ready else seen
        for replica, seen in obs.prepared.items()
    }
    return intent, machine.step(intent.recovery, Look(replace(obs, prepared=prepared, saving=True), policy))


def _ahead(snap: Snapshot, intent: Intent, policy: Policy) -> Intent:
    """Ask for a checkpoint where a process will soon have none of a resource left; training goes on."""
    left = seconds_left(snap, intent.membership)
    if not policy.enforce or left is None or left > checkpoint_on_demand.AHEAD_SECONDS:
        return intent
    return before_restart(snap, intent, leaving=1, ahead=True)[0]


def with_checkpoints(obs: Observation, snap: Snapshot, membership: Membership) -> Observation:
    """Add what the job's checkpoints in memory mean for a restart, where its ranks keep any.

    Whether all ranks can save one on demand that outlives a restart, when they saved the newest that all of them can
    load, and when the newest that they can load when a pod is lost.
    """
    own = held(snap, membership)
    if not own:
        return obs
    procs = snap.job.spec.procs_per_replica
    ranks = len(membership.members) * procs
    copied = copies.copied(snap, membership)
    copied_by = {each.rank for each in spread([each for each in own if each.in_folder], ranks, procs)}
    # What survives a lost pod: copies on other pods, and the folder.
    outlasting = [each for each in _outliving(_with_replicas(snap, membership, 1), copied) if each.in_folder]
    return replace(
        obs,
        saves=checkpoint_on_demand.can_answer(_outliving(own, copied), ranks),
        saved_at=_saved_at(own, ranks, procs),
        outlasting_at=_saved_at(outlasting, ranks, procs),
        spoilt=replace(
            obs.spoilt,
            held_at=saved_at(spread(own, ranks, procs), ranks),
            copies_in_folder=copied_by == set(range(ranks)),
        ),
    )


def _saved_at(found: list[Held], ranks: int, procs: int) -> float | None:
    """Return when the newest step that all ranks can have was saved, unix seconds; None where there is none."""
    newest = newest_of_all(spread(found, ranks, procs), ranks)
    return None if newest is None else newest.unix_ms / 1000


def newest_figures(snap: Snapshot, membership: Membership) -> tuple[int, float, float] | None:
    """Return the newest step that all ranks can have, when it was saved, and the seconds that training waited for it.

    None where there is none; 0 seconds where no rank reports it.
    """
    own, procs = held(snap, membership), snap.job.spec.procs_per_replica
    ranks = len(membership.members) * procs
    newest = newest_of_all(spread(own, ranks, procs), ranks) if own else None
    return None if newest is None else (newest.step, newest.unix_ms / 1000, longest_save(own, newest))


def before_restart(
    snap: Snapshot,
    intent: Intent,
    *,
    urgent: bool = False,
    leaving: int | None = None,
    moving: int = 0,
    resizes: bool = False,
    ahead: bool = False,
) -> tuple[Intent, bool]:
    """Ask for a checkpoint before a restart or a suspension; return whether it has to wait.

    ``leaving``: how many pods the restart leaves; None: all. ``moving``: how many get another role; these forget what
    they hold of their ranks, and copies alone are theirs again. ``resizes``: the job gets another number of ranks,
    for which copies of single ranks are of no use. ``ahead``: a process is forecast to end, and nothing restarts yet.
    """
    membership = intent.membership
    # Ranks that failed or hang answer no request.
    if membership.phase != "Run" or intent.recovery.stop is not None or intent.recovery.hang is not None:
        return intent, False
    ranks = len(membership.members) * snap.job.spec.procs_per_replica
    # What one pod takes along, another pod has. Of two pods that leave, one may keep the other's copies.
    outlasting = copies.copied(snap, membership) if leaving is not None and leaving <= 1 and not resizes else []
    demand, waits = checkpoint_on_demand.wait(
        intent.demand,
        _outliving(_with_replicas(snap, membership, None if leaving is None else leaving + moving), outlasting),
        ranks,
        generation=membership.generation,
        now=snap.now,
        urgent=urgent,
        ahead=ahead,
    )
    return replace(intent, demand=demand), waits


def for_another_size(snap: Snapshot, membership: Membership) -> tuple[bool, float | None]:
    """Return whether all ranks can save on demand for another number of ranks, and when they last saved so.

    What single ranks hold in memory is of no use to another number of them. What all hold alike is, and a folder that
    the program reads.
    """
    procs = snap.job.spec.procs_per_replica
    ranks = len(membership.members) * procs
    usable = [each for each in _with_replicas(snap, membership, 0) if each.in_folder]
    return checkpoint_on_demand.can_answer(usable, ranks), _saved_at(usable, ranks, procs)


def _with_replicas(snap: Snapshot, membership: Membership, losing: int | None) -> list[Held]:
    """Return what the ranks hold. What the same local rank of more pods holds than lose it is as safe as in a folder.

    So is what one of them has in a folder.
    """
    procs, own = snap.job.spec.procs_per_replica, held(snap, membership)
    alike: defaultdict[tuple[int, int, int], list[Held]] = defaultdict(list)
    for each in own:
        if each.replicated:
            alike[each.rank % procs, each.step, each.generation].append(each)
    # If every pod leaves, no number of holders is enough, and only a folder is safe.
    enough = len(membership.members) if losing is None else losing
    safe = {key for key, of in alike.items() if len(of) > enough or any(each.in_folder for each in of)}
    return [
        replace(each, in_folder=True) if (each.rank % procs, each.step, each.generation) in safe else each
        for each in own
    ]


def _outliving(own: list[Held], outlasting: list[Held]) -> list[Held]:
    """Return what the ranks hold, with a copy in another pod counted as a file in a folder."""
    copied = {(each.rank, each.step, each.generation) for each in outlasting}
    return [
        replace(each, in_folder=True) if (each.rank, each.step, each.generation) in copied else each for each in own
    ]


def held(snap: Snapshot, membership: Membership) -> list[Held]:
    """Return the steps that the job's ranks hold in memory."""
    return [each for member in membership.members for each in _of(snap, member)]


def _of(snap: Snapshot, member: Member) -> list[Held]:
    """Return the checkpoints that a pod reports of its own ranks; those of other ranks are left out."""
    received = snap.reports.summaries.get(member.pod_uid)
    # The operator may have started since, or the pod may never have reported.
    if received is None or not received.summary.checkpoints:
        return []
    own = range(member.first_rank, member.first_rank + snap.job.spec.procs_per_replica)
    return [each for each in received.summary.checkpoints if each.rank in own]


def longest_save(held: Iterable[Held], of: Held) -> float:
    """Return the longest that a rank waited for the save of a step, seconds; 0 where no rank reports it."""
    alike = (each.saving_us for each in held if (each.step, each.generation) == (of.step, of.generation))
    return max(alike, default=0) / 1e6
