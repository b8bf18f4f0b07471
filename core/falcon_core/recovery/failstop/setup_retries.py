"""Report set-up calls that ranks repeated in place as an incident of SEV3, once the ranks have gone on.

No repair is decided here: the shim has already repeated the call, within ``spec.recovery.retries`` (docs/adr/0061). A
rank whose repeated calls fail ends, and its failure's evidence names the retries.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery.diagnosis.communicator_progress import place
from falcon_core.recovery.model.events import RetriesClosed
from falcon_core.recovery.model.failure import Retried, RetryIncident
from falcon_core.recovery.model.observation import Look, Observation, RankSeen
from falcon_core.recovery.model.slowdown import NAMED_RANKS
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step

ERROR_CLASS = "OtherNetworkError"  # (``errors.table``) an address was not reached; the records do not say why
GATHER_SECONDS = 5.0  # ranks that failed together are in one incident
APART_SECONDS = 60.0  # between two incidents, however often ranks try again
replace = msgspec.structs.replace


def step(state: RecoveryState, look: Look) -> Step:
    """Look at the job once, after the ladders. While a failure is open, what its ranks try again is not over."""
    has_tried = look.obs.running and any(sent.retries for sent in look.obs.reports.sent)
    ranks = [rank for rank in look.obs.ranks if rank.sent.retries] if has_tried else []
    # An open failure may be what these retries end in: then they are part of it.
    if not ranks or state.stop is not None:
        return Step(state)
    seen = _counted(state.retried, sum(rank.sent.retries for rank in ranks), look.obs)
    state = replace(state, retried=seen)
    # Ranks try again one after the other: gather them for a while, so that one incident names all.
    waited = min(look.obs.now - seen.since - GATHER_SECONDS, look.obs.now - seen.shown_at - APART_SECONDS)
    if seen.retries == seen.shown or waited < 0 or not all(_went_on(rank, look.obs.now - seen.since) for rank in ranks):
        return Step(state)
    number = state.incidents + 1
    incident = RetryIncident(
        id=f"{look.policy.job}-{number}",
        at=seen.since,
        generation=look.obs.generation,
        places=[place(look.obs, rank) for rank in ranks[:NAMED_RANKS]],
        ranks=len(ranks),
        retries=seen.retries - seen.shown,
    )
    seen = replace(seen, shown=seen.retries, shown_at=look.obs.now)
    return Step(replace(state, incidents=number, retried=seen), events=[RetriesClosed(incident=incident)])


def _counted(before: Retried | None, retries: int, obs: Observation) -> Retried:
    if before is None or before.generation != obs.generation:
        return Retried(generation=obs.generation, retries=retries, since=obs.now)
    return before if retries <= before.retries else replace(before, retries=retries, since=obs.now)


def _went_on(rank: RankSeen, seconds: float) -> bool:
    """Check whether the rank runs, and has returned from a call within these seconds."""
    has_called = rank.sent.last_call_unix_ns is not None and rank.silent_seconds < seconds
    return rank.process == "Running" and has_called
