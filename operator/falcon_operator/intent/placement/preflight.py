"""Check all machines before a generation runs (``spec.preflight``): choose who measures, and act on the results.

Every pod of a gathered generation measures at the same time, before the ranks start, if one of them is new, or if the
failure that ended the generation before points at a machine. When all have answered, they measure the links between
them, if they are three at least. Under ``Enforce`` a machine that two rounds in a row find slow, or whose links are all
slow, is left for a ready spare, whose pod is checked as well. Where none is ready the job starts all the same: a slow
node is better than none.
"""

from __future__ import annotations

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.recovery import Replace, Spares, StepTaken, StopIncident, apply_actions
from falcon_core.recovery.preflight.link_test import BANDWIDTH
from falcon_core.recovery.preflight.machine_test import (
    Found,
    Machine,
    Preflight,
    awaited,
    begin_round,
    end_round,
    is_due,
    links_are_due,
    order_links,
    sick,
    without_round,
)
from falcon_core.recovery.preflight.smoke_test import size_of
from falcon_operator.intent.model.intent import Intent, JobNames
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.placement.gang import Gathering
from falcon_operator.intent.placement.link_order import machines_of

replace = msgspec.structs.replace


def check(
    snap: Snapshot, intent: Intent, gathering: Gathering, spares: Spares, judge: Judge
) -> tuple[Intent, Gathering]:
    """Take the next step of the check. Return the intent, and whether the generation may still run now."""
    membership = intent.membership
    # Only machines without running ranks can be measured.
    if snap.job.spec.preflight.mode == "Off" or membership.phase != "Stop":
        return _ended(intent), gathering
    if not gathering.ready:
        return _ended(intent), gathering  # a pod went meanwhile: what the others measure is compared with nothing
    state = intent.preflight
    if not state.asked_at:
        # After a failure that does not point at a machine, the machines that were measured before stay trusted.
        if not is_due(state, membership, suspected=size_of(intent.recovery.stop, judge) == "Full"):
            return intent, gathering
        state = begin_round(state, snap.now)
    machines = machines_of(snap, membership, state.number)
    waiting = awaited(state, machines, snap.now)
    # Links come second: a machine that computes slowly would also make its links look slow.
    if not waiting and links_are_due(state, machines):
        state = order_links(state, snap.now, snap.nonce)
        waiting = awaited(state, machines, snap.now)
    if waiting:
        return replace(intent, preflight=state), _held(state, machines, len(waiting))
    # All answers are in. A doubtful result makes another round, and then the start is held again.
    state = end_round(state, machines, membership, snap.now)
    intent = replace(intent, preflight=state)
    if state.asked_at:
        return intent, _held(state, machines, len(machines))
    return _leave(snap, intent, gathering, spares)


def reason(found: Found) -> str:
    """Say what a machine was found to be, in words for people."""
    if not found.kind:
        return f"in the check before the start, {found.text}"
    if found.is_link:
        what = "are slow" if found.kind == BANDWIDTH else "answer late"
        return f"in the check before the start, all its links {what} ({found.text})"
    return f"in the check before the start, {1 / max(found.ratio, 1e-6):.2f} of its peers' rate ({found.kind})"


def with_steps(stop: StopIncident | None, bad: list[Found], generation: int, now: float) -> StopIncident | None:
    """Return the open failure with what a check has added to its repair."""
    if stop is None:
        return None
    steps = [StepTaken(at=now, what="Replace", generation=generation, node=found.node) for found in bad]
    return replace(stop, done=[*stop.done, *steps][-8:])


def _ended(intent: Intent) -> Intent:
    """Return the intent without an open round."""
    return replace(intent, preflight=without_round(intent.preflight)) if intent.preflight.asked_at else intent


def _held(state: Preflight, machines: list[Machine], waiting: int) -> Gathering:
    answered = f"{len(machines) - waiting} of {len(machines)} pods have answered"
    what = "the links between the machines are measured" if state.links_at else "the machines are checked"
    return Gathering(ready=False, placed=True, waiting=f"{what} before the start: {answered}")


def _leave(snap: Snapshot, intent: Intent, gathering: Gathering, spares: Spares) -> tuple[Intent, Gathering]:
    """Leave the machines that are found bad, as far as spares are ready and the mode says so."""
    if snap.job.spec.preflight.mode != "Enforce" or not spares.pool or not spares.available:
        return intent, gathering
    # No more than there are spares: a machine that tested badly still trains, an empty place does not.
    bad = sick(intent.preflight)[: spares.ready or 0]
    if not bad:
        return intent, gathering
    moves = [Replace(found.replica, reason(found), False, False, "") for found in bad]
    membership = apply_actions(intent.membership, moves, JobNames(snap.job), snap.now)
    words = ", ".join(f"{found.node} ({reason(found)})" for found in bad)
    recovery = replace(intent.recovery, stop=with_steps(intent.recovery.stop, bad, membership.generation, snap.now))
    intent = replace(intent, membership=membership, recovery=recovery)
    return intent, Gathering(ready=False, placed=True, waiting=f"leaving {words}")
