"""Decide the number of replicas of an elastic job, and carry its memory over to another number.

A job that has lost a node, and has no other node, may wait for one or go on with fewer replicas. Both are priced in
seconds of training at full speed (``planning.ski_rental.wait_or_drop``): waiting loses each second whole, and fewer
replicas lose their missing share and, when the node comes, one more restart. When the pods that are missing are ready,
all ranks restart with them: at once, or behind the next checkpoint if the steps that would be done again cost more than
the missing share until then.

The speed of n of N replicas is taken to be n / N: each replica does the same work in each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from falcon_core.planning.restart_price import redo_seconds
from falcon_core.planning.ski_rental import Choice, wait_or_drop
from falcon_core.recovery.model.failure import StepTaken, StopIncident
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.recovery.model.state import Levels, RecoveryState, Suspicions
from falcon_core.recovery.repairs import restart_budget

replace = msgspec.structs.replace


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that a job's owner allows, in replicas."""

    least: int
    most: int
    listed: Sequence[int] = ()  # empty: every size from least to most
    procs: int = 1  # ranks of a replica
    ranks_of_copy: int = 1  # ranks that hold the model once; a world size must be a multiple of it


class Shrinking(msgspec.Struct, frozen=True, kw_only=True):
    """The choice between waiting for a node and going on with fewer replicas."""

    size: int  # replicas to go on with; 0: no allowed size is small enough
    due_seconds: float = math.inf  # standstill from which on fewer replicas cost less
    price_seconds: float = 0.0  # the restart that brings the missing replicas back
    is_due: bool = False


class Growing(msgspec.Struct, frozen=True, kw_only=True):
    """The choice between a restart with more replicas now and one behind the next checkpoint."""

    size: int  # replicas to go on with; 0: no larger size is possible with the pods that are ready
    redo_seconds: float = 0.0  # training of the present size that a restart now would throw away
    checkpoint_seconds: float | None = None  # until the next checkpoint; None: not known
    price_seconds: float = 0.0  # standstill and redone work of a restart now
    is_due: bool = False


def possible_sizes(bounds: Bounds) -> list[int]:
    """Return the sizes that the owner allows and the layout can have, ascending."""
    sizes = bounds.listed or range(bounds.least, bounds.most + 1)
    return [
        size
        for size in sorted(set(sizes))
        if bounds.least <= size <= bounds.most and size * bounds.procs % bounds.ranks_of_copy == 0
    ]


def largest(sizes: Sequence[int], at_most: int) -> int:
    """Return the largest of the sizes that needs at most so many replicas; 0: none."""
    return max((size for size in sizes if size <= at_most), default=0)


def standstill_seconds(state: RecoveryState) -> float:
    """Return how long a restart of all ranks stands still [s]: as measured in this job, else an estimate."""
    return state.overheads.get(restart_budget.TYPE, restart_budget.DEFAULT_OVERHEAD_SECONDS)


def shrinking(
    sizes: Sequence[int],
    *,
    members: int,
    available: int,
    stood_still_seconds: float,
    restart_seconds: float,
    seconds_left: float = math.inf,
) -> Shrinking:
    """Weigh waiting for the missing nodes against going on with fewer replicas.

    The ranks have to be started in both cases, so that fewer replicas cost nothing at once. The restart that brings the
    others back waits for a checkpoint, so it costs its standstill alone.

    Args:
        sizes: that the job can have.
        members: replicas that the job has, of which some have no node.
        available: replicas that could begin now.
        stood_still_seconds: since the job began to wait for a node.
        restart_seconds: standstill of a restart of all ranks.
        seconds_left: until the job's end, where it is known.
    """
    size = largest(sizes, min(available, members))
    if not size or size == members:
        return Shrinking(size=size)
    speed = size / members
    choice = wait_or_drop(
        stood_still_seconds,
        drop_seconds=0.0,
        rejoin_seconds=restart_seconds,
        speed_without=speed,
        seconds_left=max(0.0, seconds_left),
    )
    return Shrinking(
        size=size, due_seconds=restart_seconds / speed, price_seconds=restart_seconds, is_due=choice is Choice.DROP
    )


def growing(
    sizes: Sequence[int],
    *,
    members: int,
    ready: int,
    trained_seconds: float,
    ready_seconds: float,
    restart_seconds: float,
    interval_seconds: float | None = None,
    unsaved_seconds: float | None = None,
) -> Growing:
    """Weigh a restart with more replicas now against one behind the next checkpoint.

    Where it is not known when the next checkpoint comes, the restart is due when the share of training that the missing
    replicas would have done since they are ready has reached the work that the restart throws away.

    Args:
        sizes: that the job can have.
        members: replicas that train.
        ready: further pods that are ready to take part.
        trained_seconds: of this generation.
        ready_seconds: since these pods are ready.
        restart_seconds: standstill of a restart of all ranks.
        interval_seconds: declared time between two checkpoints.
        unsaved_seconds: since the newest checkpoint from which the restart can begin; None: not known.
    """
    size = largest(sizes, members + ready)
    if size <= members:
        return Growing(size=0)
    redo = redo_seconds(trained_seconds, interval_seconds=interval_seconds, unsaved_seconds=unsaved_seconds)
    # Where it is not known when the ranks saved, the times since then and until they save again are alike on average.
    until = None if interval_seconds is None else max(0.0, interval_seconds - redo)
    # Both in seconds of one replica: what is thrown away is the work of those that train, what is missed of the others.
    thrown_away, missing = redo * members, size - members
    sooner = until is not None and thrown_away <= missing * until
    return Growing(
        size=size,
        redo_seconds=redo,
        checkpoint_seconds=until,
        price_seconds=restart_seconds + redo,
        is_due=sooner or missing * ready_seconds >= thrown_away,
    )


def renumbered(
    state: RecoveryState, roles: Mapping[str, int], step: StepTaken | None
) -> tuple[RecoveryState, list[SlowIncident]]:
    """Return the memory of a job whose replicas have other numbers, and the slowdowns that end with the earlier size.

    What was learned of ranks by their number, and of the iteration time, belongs to the earlier size. What was learned
    of nodes, failures and prices stays.

    Args:
        state: before the change.
        roles: the new numbers of the replicas, by the name of their pod.
        step: of the open failure's repair; None: no failure is open.
    """
    slowdowns = [slow for slow in state.slowdowns if slow.id]
    stop = state.stop
    if stop is not None and step is not None:
        stop = _renumbered_failure(stop, roles, step)
    move = state.move if state.move is not None and state.move.restarts else None
    after = replace(
        state,
        levels=Levels(phases=state.levels.phases),
        suspicions=Suspicions(),
        slowdowns=[],
        stop=stop,
        hang=None,
        sharing=None,
        probe=None,
        leaving=[],
        move=move,
        awaiting=None,
    )
    return after, slowdowns


def _renumbered_failure(stop: StopIncident, roles: Mapping[str, int], step: StepTaken) -> StopIncident:
    # A replica that is out has no number any more. One that exists is needed where the members are indexed by it.
    replica = roles.get(stop.fault.pod_name, min(stop.fault.replica, max(roles.values(), default=0)))
    stop = _with_step(stop, step)
    return replace(stop, fault=replace(stop.fault, replica=replica), ends=[], renumbered=True)


def joined(state: RecoveryState, step: StepTaken | None) -> RecoveryState:
    """Return the memory of a job that pods have joined in the place of others: all replicas keep their numbers.

    ``step``: as of ``renumbered``.
    """
    return state if state.stop is None or step is None else replace(state, stop=_with_step(state.stop, step))


def _with_step(stop: StopIncident, step: StepTaken) -> StopIncident:
    return replace(stop, done=[*stop.done, step][-8:])
