"""What the check of the machines before the start has found: the condition ``MachinesChecked``."""

from __future__ import annotations

from falcon_operator.intent.preflight import reason
from falcon_operator.status.conditions import Finding
from falcon_operator.status.view import View
from falcon_operator.status.words import listed

TYPE = "MachinesChecked"


def machines_checked(view: View) -> Finding:
    """Build the finding on the newest complete check of all machines."""
    mode, state = view.snap.job.spec.preflight.mode, view.intent.preflight
    if mode == "Off":
        return Finding(TYPE, None, "NotWanted", "spec.preflight.mode is Off", quiet=True)
    if not state.checked:
        return Finding(TYPE, None, "NotYet", "no check of the machines is complete", quiet=True)
    count = state.checked
    bad = [each for each in state.found if each.is_certain]
    if bad:
        left = {exclusion.node for exclusion in view.intent.membership.exclusions}
        stay = [each for each in bad if each.node not in left]
        words = listed([f"node {each.node} ({each.pod_name}): {reason(each)}" for each in bad])
        return Finding(TYPE, False, "BadMachine", f"{words}; {_what_follows(view, bool(stay))}", shown=True)
    if state.missing:
        message = f"{state.missing} of {count} machines gave no result: {listed(state.why_missing)}"
        return Finding(TYPE, None, "Incomplete", message)
    if not state.compared:
        message = f"no two of {count} machines have the same devices: what each measured is compared with nothing"
        return Finding(TYPE, None, "NotCompared", message)
    return Finding(TYPE, True, "AllAlike", f"the {count} machines computed alike before the ranks started")


def _what_follows(view: View, stays: bool) -> str:
    if not stays:
        return "the job has left it"
    if view.snap.job.spec.preflight.mode == "Report":
        return "the job starts there all the same, since spec.preflight.mode is Report"
    spares = view.obs.spares
    return f"the job starts there all the same: {spares.message or 'no ready spare of a warm pool'}"
