"""Compare what a named culprit computes now with what it computed while it was healthy.

A comparison of the ranks names a culprit. From then on its own figures decide whether it is slow at this moment, what
it loses, and whether its replacement computes as it should. The remembered level also holds in the next generation,
whose agents may have learned the slow level as healthy.
"""

from __future__ import annotations

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.model import Cause
from falcon_core.recovery.diagnosis.stragglers import reference_ns
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.stats.medians import median

REFRESH_SECONDS = 3.0  # the culprit's figures are updated this often until an action is under way
replace = msgspec.structs.replace


def _newest_ns(named: Culprit, obs: Observation, newest: int) -> list[int]:
    """Return the rank's newest computation, ns, or as much of it as is known; empty where no report is recent."""
    rank = next((rank for rank in obs.ranks if rank.rank == named.rank and rank.fresh), None)
    return rank.sent.compute_ns[-newest:] if rank is not None else []


def named_for_ns(named: Culprit) -> int:
    """Return the rank's computation beyond its healthy computation [ns], when its figures were taken."""
    return named.compute_ns - (named.healthy_compute_ns or named.peers_compute_ns)


def is_slow_now(named: Culprit, look: Look, *, windows: int = 1) -> bool:
    """Check whether each of the newest iterations has a fair share of the excess that the culprit was named for.

    ``windows``: of C iterations, the newest.
    """
    wanted = windows * look.policy.consecutive
    newest = _newest_ns(named, look.obs, wanted)
    least_ns = reference_ns(named, look) + JUDGEMENT.action_share * named_for_ns(named)
    return len(newest) == wanted and min(newest) > least_ns


def computes_as_before(named: Culprit, look: Look) -> bool:
    """Check whether the rank typically computes as fast as before it was slow, wherever it runs now."""
    newest = _newest_ns(named, look.obs, look.policy.consecutive)
    well_ns = reference_ns(named, look) * (1 + look.policy.verify)
    return len(newest) == look.policy.consecutive and median(newest) <= well_ns


def excess_ns(named: Culprit, look: Look, newest: int) -> float | None:
    """Return the computation of the rank's newest iterations beyond its healthy computation [ns]; None: not known."""
    known = _newest_ns(named, look.obs, newest)
    return median(known) - reference_ns(named, look) if known else None


def slow_iterations(named: Culprit, look: Look) -> tuple[int, bool]:
    """Return the number of newest iterations in a row that were slow, and whether all in the report were."""
    rank = next(rank for rank in look.obs.ranks if rank.rank == named.rank)
    well_ns = reference_ns(named, look) * (1 + look.policy.verify)
    known = rank.sent.compute_ns
    well = [place for place, value_ns in enumerate(known) if value_ns <= well_ns]
    return len(known) - (well[-1] + 1 if well else 0), not well


def with_newest_figures(slow: SlowIncident, current: Culprit | None, now: float) -> SlowIncident:
    """Refresh the culprit's figures each ``REFRESH_SECONDS``, and at once when they first show a cause.

    ``current``: the culprit that stands out on the incident's node at this look.
    """
    named = slow.culprit
    if named is None or current is None or current.rank != named.rank:
        return slow
    # A cause that shows for the first time is news for people; changed figures alone are not.
    explained = named.cause is Cause.UNKNOWN and current.cause is not Cause.UNKNOWN
    explained = explained or (named.samples is None and current.samples is not None)
    explained = explained or (not named.neighbours and bool(current.neighbours))
    if not explained and now - slow.refreshed_at < REFRESH_SECONDS:
        return slow
    # Its agent has taken the slow level for healthy, so the peers stay the reference.
    if (slow.onset.from_start or slow.onset.iteration <= 1) and named.healthy_compute_ns is None:
        # What calls hide of the peers' computation is known only for a while (``RankSignals.longest_share``).
        peers_ns = max(current.peers_compute_ns, named.peers_compute_ns if named.peers.hidden else 0)
        slowdown = round(current.compute_ns / peers_ns, 2)
        current = replace(current, healthy_compute_ns=None, peers_compute_ns=peers_ns, slowdown=slowdown)
        current = replace(current, peers=replace(current.peers, hidden=current.peers.hidden or named.peers.hidden))
    culprit = _refreshed(named, current)
    if slow.onset.unreported:
        peers = replace(culprit.peers, compute_ns=named.peers.compute_ns)
        culprit = replace(held_against(culprit, named.healthy_compute_ns), peers=peers)
    return replace(slow, subject=culprit, refreshed_at=now)


def held_against(culprit: Culprit, healthy_ns: int | None) -> Culprit:
    """Return the culprit with what was its healthy computation when it was found, ns.

    While there is no onset, its agent goes on learning from it.
    """
    slowdown = round(culprit.compute_ns / healthy_ns, 2) if healthy_ns else culprit.slowdown
    if culprit.peers.hidden:
        slowdown = min(slowdown, culprit.slowdown)
    return replace(culprit, healthy_compute_ns=healthy_ns, slowdown=slowdown)


def _refreshed(named: Culprit, current: Culprit) -> Culprit:
    """Return the newest figures. A cause that was found once is kept until the figures show another cause."""
    held = current if current.healthy_compute_ns or not named.healthy_compute_ns else named
    culprit = replace(
        current,
        healthy_compute_ns=current.healthy_compute_ns or named.healthy_compute_ns,
        # The peers' times belong to the same look as the healthy time, which is multiplied by what they gain.
        peers=replace(current.peers, compute_ns=held.peers.compute_ns),
        samples=current.samples or named.samples,
        neighbours=current.neighbours or named.neighbours,
    )
    if current.cause is not Cause.UNKNOWN:
        return culprit
    return replace(
        culprit,
        cause=named.cause,
        cause_culprit=named.cause_culprit,
        cause_peers=named.cause_peers,
        cause_healthy=named.cause_healthy,
    )
