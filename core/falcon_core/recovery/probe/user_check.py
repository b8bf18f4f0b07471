"""Accept and answer a check of machines and links that a user requests (``kubectl falcon check``).

An annotation of the TrainingJob requests it. So only users who may change the job may stop its ranks for a second. A
new value requests a new check.
"""

from __future__ import annotations

from typing import Final

import msgspec

from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.probe import Check
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.probe import probe_targets

PATIENCE_SECONDS: Final = 600.0  # a check that could not begin by then is given up
MOST_TRIES: Final = 2
replace = msgspec.structs.replace


def look(state: RecoveryState, look: Look) -> RecoveryState:
    """Take over what is asked for now, and give up what cannot be."""
    known = state.check
    # A new value of the annotation is a new request; the same value is answered once.
    if not look.policy.check or (known is not None and known.asked == look.policy.check):
        check = known
    else:
        check = Check(asked=look.policy.check, since=look.obs.now)
    if check is None or check.state not in ("Waiting", "Running"):
        return state
    if check.state == "Running" and state.probe is None:  # its generation has ended, and its probe with it
        check = replace(check, state="Waiting")
    target = probe_targets.Target("Machines")
    why = probe_targets.never(target, look)
    if not why and check.state == "Waiting" and look.obs.now - check.since > PATIENCE_SECONDS:
        why = probe_targets.not_now(state, look) or "another measurement was on"
    return replace(state, check=failed(check, why, look.obs.now) if why else check)


def begun(state: RecoveryState) -> RecoveryState:
    """Note that the check's probe is on."""
    assert state.check is not None  # the probe is for it
    return replace(state, check=replace(state.check, state="Running"))


def failed(check: Check, why: str, now: float) -> Check:
    """Return the check that came to nothing, and why."""
    return replace(check, state="Failed", at=now, text=why)


def missed(check: Check, why: str, now: float, lead_seconds: float) -> Check:
    """Return the check whose ranks did not stand still together: it is tried once more.

    A job that has just become slow has iterations that are longer than those by which the order was timed.
    """
    if check.tries + 1 >= MOST_TRIES:
        return failed(check, why, now)
    return replace(check, state="Waiting", tries=check.tries + 1, lead_seconds=lead_seconds)


def done(check: Check, slow: list[str], text: str, now: float) -> Check:
    """Return the check with its result."""
    return replace(check, state="Done", at=now, slow=slow, text=text)
