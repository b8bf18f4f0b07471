"""Decide when nodes that a job has left are tested again, when they may return, and which one is the last resort.

Most slow nodes are well again within hours (FALCON §3), so a job does not leave a slow node for ever. A witness outside
the job tests the node (a burn-in): at once, and again while the node fails. The job may use a node that passes after a
probation. The probation doubles each time that the job leaves the same node, because a job may reveal what a short test
misses.

Where a node died and no spare is ready, a node that the job had left and that is not fenced is better than no node. A
node that is well again is as good as a spare. On a slow node the job runs at 1/slowdown of its speed, and pays for one
more replacement later. A job that stands still makes no progress, but does not pay that price: ``wait_or_drop`` says
when the training lost by standing still equals the price.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from falcon_core.planning.capacity import spare_price
from falcon_core.planning.ski_rental import Choice, wait_or_drop
from falcon_core.recovery.history import node_fault
from falcon_core.recovery.model.actions import Abandon, Command, Prepare, Recreate, Replace, Switch
from falcon_core.recovery.model.failure import Departure
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.state import RecoveryState

RETEST_SECONDS = 600.0  # from a failed test to the next, doubled each time
RETEST_AT_MOST_SECONDS = 3600.0
PROBATION_SECONDS = 600.0  # from leaving a node to its return, doubled each time that the same one is left
PROBATION_AT_MOST_SECONDS = 86_400.0
REMEMBERED = 32  # departures; the oldest of those that are back go first
replace = msgspec.structs.replace


# -- what is remembered ------------------------------------------------------------------------------------------------


def find(state: RecoveryState, node: str) -> Departure | None:
    """Return the newest departure from ``node``; None where the job never left that node."""
    return next((departure for departure in reversed(state.departures) if departure.node == node), None)


def record(state: RecoveryState, commands: Collection[Command], obs: Observation) -> RecoveryState:
    """Remember the nodes that these commands leave, and count those that were lost."""
    exposure = state.exposure
    if exposure.since is None:
        exposure = replace(exposure, since=obs.now)
    for command in commands:
        match command:
            case Replace(replica=replica):
                state = left(state, obs.members[replica].node, 0.0, obs.now)
                exposure = replace(exposure, lost=exposure.lost + 1)
            case Switch(replica=replica, lost=lost):
                exposure = replace(exposure, lost=exposure.lost + lost)
            case Recreate(stay=False):
                exposure = replace(exposure, lost=exposure.lost + 1)
            case Prepare(replica=replica, exclude=True):
                state = left(state, obs.members[replica].node, _slowdown(state, replica), obs.now)
            case Abandon(replica=replica):
                state = stayed(state, obs.members[replica].node)
            case _:
                pass
    return replace(state, exposure=exposure)


def _slowdown(state: RecoveryState, replica: int) -> float:
    """Return the slowdown of the replica's rank in its incident; 0 where there is none."""
    return next((culprit.slowdown for culprit in state.culprits if culprit.replica == replica), 0.0)


def left(state: RecoveryState, node: str, slowdown: float, now: float) -> RecoveryState:
    """Record that the job leaves the node; ``slowdown`` as in ``Departure``."""
    before = find(state, node)
    if not node or (before is not None and before.back_at is None):
        return state
    times = before.times + 1 if before is not None else 1
    earlier = None if before is None else replace(before, before=None)
    others = [departure for departure in state.departures if departure.node != node]
    while len(others) >= REMEMBERED:
        others.remove(next((departure for departure in others if departure.back_at is not None), others[0]))
    departure = Departure(node=node, left_at=now, slowdown=slowdown, times=times, before=earlier)
    return replace(state, departures=[*others, departure])


def stayed(state: RecoveryState, node: str) -> RecoveryState:
    """Forget that the job was leaving the node: the job stays on the node. Earlier departures still count."""
    known = find(state, node)
    state = _without_open(state, node)
    if known is None or known.back_at is not None or known.before is None:
        return state
    return replace(state, departures=[*state.departures, known.before])


def _without_open(state: RecoveryState, node: str) -> RecoveryState:
    return replace(
        state,
        departures=[
            departure for departure in state.departures if departure.node != node or departure.back_at is not None
        ],
    )


def deleted(state: RecoveryState, node: str) -> RecoveryState:
    """Forget that the job waits for the node to be well: the cluster has no such node any more."""
    return _without_open(state, node)


def tested(state: RecoveryState, node: str, now: float, *, passed: bool | None) -> RecoveryState:
    """Remember that a test of the node has ended; ``passed`` None: its result proves nothing."""
    if passed is False:
        state = node_fault.tested_slow(state, node)
    known = find(state, node)
    if known is None:
        return state
    failed = known.failed if passed is None else 0 if passed else known.failed + 1
    after = replace(known, tested_at=now, passed=bool(passed), failed=failed)
    return replace(state, departures=[after if departure is known else departure for departure in state.departures])


def back(state: RecoveryState, node: str, now: float) -> RecoveryState:
    """Record that the job may use the node again."""
    return replace(
        state,
        departures=[
            replace(departure, back_at=now) if departure.node == node and departure.back_at is None else departure
            for departure in state.departures
        ],
    )


def paused(state: RecoveryState, nodes: int, now: float) -> RecoveryState:
    """Record that the job gives its ``nodes`` back: the time from now on is not counted as time of watched nodes."""
    exposure = state.exposure
    stretch = now - exposure.since if exposure.since is not None else 0.0
    watched = exposure.node_seconds + nodes * max(0.0, stretch)
    return replace(state, exposure=replace(exposure, since=None, node_seconds=watched))


# -- what follows ------------------------------------------------------------------------------------------------------


def retest_at(departure: Departure) -> float:
    """Return when a node that failed its newest test is tested again (unix seconds)."""
    distance = RETEST_SECONDS * 2.0 ** min(16, max(0, departure.failed - 1))
    return departure.tested_at + min(RETEST_AT_MOST_SECONDS, distance)


def returns_at(departure: Departure) -> float:
    """Return when the job may use a node again that has passed its newest test (unix seconds)."""
    probation = PROBATION_SECONDS * 2.0 ** min(16, departure.times - 1)
    return max(departure.tested_at, departure.left_at + min(PROBATION_AT_MOST_SECONDS, probation))


def spare_seconds(state: RecoveryState, obs: Observation, taken: int = 0) -> float:
    """Return the price of taking a ready spare for a slow node [s], from this job's losses and returns so far.

    ``taken``: of the ready spares, how many are promised already. Returns 0 where the number of spares is not known, or
    where no spare is left (then no spare is taken).
    """
    ready = (obs.spares.ready or 0) - taken
    if ready <= 0:
        return 0.0
    # A spare is worth more the sooner the next node is lost, and the longer a slow node stays away.
    exposure, nodes = state.exposure, len(obs.members)
    since = exposure.since if exposure.since is not None else obs.now
    # Only departures of slow nodes count: what failed comes back by a repair, or never.
    slow = [departure for departure in state.departures if departure.slowdown > 0]

    def away(departure: Departure, end: float) -> float:
        # One node that never comes back says little of how soon the others do.
        return min(spare_price.MOST_BACK_SECONDS, max(0.0, end - departure.left_at))

    ends = [obs.now if departure.back_at is None else departure.back_at for departure in slow]
    return spare_price.price(
        ready,
        losses_per_second=spare_price.loss_rate(
            lost=exposure.lost, node_seconds=exposure.node_seconds + nodes * max(0.0, obs.now - since), nodes=nodes
        ),
        back_seconds=spare_price.back_seconds(
            returned=sum(departure.back_at is not None for departure in slow),
            away_seconds=sum(away(departure, end) for end, departure in zip(ends, slow, strict=True)),
        ),
    )


def last_resort(
    state: RecoveryState, usable: Collection[str], *, stood_still_seconds: float, replacement_seconds: float
) -> str:
    """Return the node that the job had left and that takes a dead node's place now; "" to wait for a spare.

    ``usable``: nodes that live, are not fenced, and on which the job may run. A node that is well again is taken at
    once, whatever is left of its probation. Otherwise the least slow node is taken, but only later: the training that
    the node would have done while the job stood still must be worth the replacement that the node will need. A node
    that was left for a failure, and has not passed a test since, is never taken.
    """
    left = [departure for departure in state.departures if departure.node in usable]
    well = next((departure for departure in left if departure.back_at is not None or departure.passed), None)
    if well is not None:
        return well.node
    best = min(
        (departure for departure in left if departure.slowdown > 0),
        key=lambda departure: departure.slowdown,
        default=None,
    )
    if best is None:
        return ""
    # Taking the slow node costs a second replacement later, when a spare comes. That is paid only for as long a
    # standstill.
    choice = wait_or_drop(
        stood_still_seconds,
        drop_seconds=0.0,
        rejoin_seconds=replacement_seconds,
        speed_without=1 / max(1.0, best.slowdown),
    )
    return best.node if choice is Choice.DROP else ""
