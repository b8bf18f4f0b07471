"""Run the smoke test during a restart (``spec.preflight``): choose who measures, and act on the results.

The plan that stops a generation asks for it, so that each pod tests its machine as soon as its processes are dead. A
start waits for no answer, but for the second one of a machine that the first has found slow, and two seconds at most.
Under ``Enforce`` a sick machine is left for a ready spare, also when the ranks have just been started: they have
trained nothing yet that could be lost.
"""

from __future__ import annotations

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.recovery import Replace, Spares, apply_actions
from falcon_core.recovery.preflight import smoke_test
from falcon_core.recovery.preflight.machine_test import MOST_EXAMPLES, Found, is_due
from falcon_operator.intent.model.intent import Intent, JobNames
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.placement.gang import Gathering
from falcon_operator.intent.placement.link_order import machines_of
from falcon_operator.intent.placement.preflight import with_steps

replace = msgspec.structs.replace


def check(
    snap: Snapshot, intent: Intent, gathering: Gathering, spares: Spares, judge: Judge
) -> tuple[Intent, Gathering]:
    """Take the next step of the test. Return the intent, and whether the generation may still run now."""
    membership, state = intent.membership, intent.smoke
    stop = intent.recovery.stop
    if snap.job.spec.preflight.mode == "Off" or stop is None:  # once training goes on, its own speed says more
        return replace(intent, smoke=replace(state, asked_at=0.0)), gathering
    # The ranks have just been stopped, so the machines are free to be tested.
    if smoke_test.is_due(state, stop, membership, judge):
        measured = intent.preflight.generation == membership.generation
        if measured or is_due(intent.preflight, membership, suspected=False):
            return intent, gathering  # with a newcomer all are measured, and longer
        return replace(intent, smoke=smoke_test.begin_round(state, membership.generation, snap.now)), gathering
    if not state.asked_at or state.generation != membership.generation:
        return intent, gathering
    machines = machines_of(snap, membership, state.number, smoke=True)
    # Only from when the start could take place does the test cost the job any time.
    since = max(state.asked_at, membership.since) if membership.phase == "Run" or gathering.ready else None
    state = smoke_test.step(state, machines, waits_since=since, now=snap.now)
    intent = replace(intent, smoke=state)
    # A machine that looked sick is tested twice before it is left, and only that may delay the start.
    if smoke_test.holds(state, snap.now) and membership.phase == "Stop" and gathering.ready:
        suspects = ", ".join(found.node for found in state.found)
        return intent, Gathering(ready=False, placed=True, waiting=f"tested again during the restart: {suspects}")
    bad = smoke_test.sick(state)
    return _follow(snap, intent, gathering, spares, bad) if bad else (intent, gathering)


def reason(found: Found) -> str:
    """Say what a machine was found to be, in words for people."""
    if not found.kind:
        return f"in the smoke test during the restart, {found.text}"
    rate = 1 / max(found.ratio, 1e-6)
    return f"in the smoke test during the restart, {rate:.2f} of its peers' rate, twice in a row ({found.kind})"


def _follow(
    snap: Snapshot, intent: Intent, gathering: Gathering, spares: Spares, bad: list[Found]
) -> tuple[Intent, Gathering]:
    """Leave the sick machines, as far as spares are ready and the mode says so; the diagnosis names them anyway."""
    stop = intent.recovery.stop
    assert stop is not None  # the caller has looked
    words = ", ".join(f"node {found.node} ({found.pod_name}): {reason(found)}" for found in bad[:MOST_EXAMPLES])
    leaves = snap.job.spec.preflight.mode == "Enforce" and spares.pool and spares.available
    # A sick machine is better than none, so no more are left than spares are ready.
    left = bad[: spares.ready or 0] if leaves else []
    if not left:
        why = "spec.preflight.mode is Report" if snap.job.spec.preflight.mode == "Report" else spares.message
        kept = replace(stop, smoke=f"{words}; it is kept: {why or 'no ready spare of a warm pool'}")
        return replace(intent, recovery=replace(intent.recovery, stop=kept)), gathering
    moves = [Replace(found.replica, reason(found), False, False, stop.id) for found in left]
    membership = apply_actions(intent.membership, moves, JobNames(snap.job), snap.now)
    # The ranks have been started already: the new generation needs a rendezvous of its own.
    if membership.generation != intent.membership.generation:
        intent = replace(intent, master_addr="", master_port=0)
    moved = with_steps(replace(stop, smoke=words, left_sick=True), left, membership.generation, snap.now)
    intent = replace(intent, membership=membership, recovery=replace(intent.recovery, stop=moved))
    return intent, Gathering(ready=False, placed=True, waiting=f"leaving {words}")
