"""Follow a slow link that exists at the same time as slow ranks, in an incident with its own loss.

While a rank is named, its computation explains the slowdown. If it explains less than half of it in each of the newest
windows, something else is slow as well. Then the operator requests the details of all ranks' waits. A link is named by
the usual rules (``diagnosis.slow_links``), except that the named ranks may be slow and may lack CPU.

Moved micro-batches hide most of a slow rank's delay. They also change the calls of their ranks, so that no healthy
transfer times are known. Iterations that are longer than the present shares explain then make a suspicion (phase
``Suspected``, which is not reported). All links are measured during a pause (``probe.probe_controller``), and a link
that is far below its peers is named.

From then on the rank's loss is its own excess alone (``cost.loss``), so that its node is not replaced for what the link
costs. Roles are exchanged against the link once the link's own loss has paid for that (``concurrent_link_swap``). When
no slow rank is left, the link's incident replaces theirs, and the ladder against links continues from there. The
incident survives the restart by which a node is left, because no healthy transfer times are known in the next
generation. If an exchange was not enough, all links are measured once more, because another link may be slow too.
"""

from __future__ import annotations

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.planning import ski_rental
from falcon_core.recovery.cost.unexplained import is_suspected, moved_windows
from falcon_core.recovery.diagnosis.communicator_progress import place
from falcon_core.recovery.diagnosis.culprit_timing import excess_ns, named_for_ns
from falcon_core.recovery.diagnosis.slow_links import slow_link
from falcon_core.recovery.failslow import incidents
from falcon_core.recovery.history import durations
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import (
    NAMED_RANKS,
    Culprit,
    IterationTimes,
    SlowdownOnset,
    SlowIncident,
    SuspectedGroup,
    detected,
    only,
    without,
)
from falcon_core.recovery.model.state import RecoveryState, numbered, with_concurrent_link
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.strategies import adjust_microbatches

PROVEN_WINDOWS = 2 * JUDGEMENT.lasting_windows  # of C iterations, in which a rank stands out while a link recovers
EXCHANGED_WINDOWS = 2  # of C iterations since an exchange of roles, before it counts as not enough


NOT_ENOUGH = "iterations take longer than their ranks explain"


replace = msgspec.structs.replace


def look(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Name a link in addition to the open incident ``slow``, count what it costs, or close its incident."""
    if state.concurrent_link is not None:
        return _followed(state, state.concurrent_link, slow, look)
    if not is_suspected(state, look):
        return Step(state)
    link = slow_link(look, slow, slow_ranks=frozenset(culprit.rank for culprit in state.culprits))
    own_ns = _own_ns(state, slow, look)
    is_named = link is not None
    if link is None:
        # Without moved micro-batches a slow link has a name. Only moved ones change the calls, so that no transfer can
        # be compared with its healthy time; then the part of the loss that no rank explains is the suspicion.
        if not look.obs.shared_unevenly:
            return Step(state)
        link = _somewhere(own_ns, look.obs)
    width = look.policy.consecutive
    iterations = (JUDGEMENT.lasting_windows if is_named else moved_windows(look.obs, width)) * width
    first = max(1, look.obs.iterations - iterations + 1)
    found = SlowIncident(
        id="",
        phase="Suspected",
        onset=SlowdownOnset(
            at=look.obs.now - iterations * slow.times.slow_ns / 1e9,
            generation=look.obs.generation,
            iteration=first,
            reported_iteration=look.obs.iterations,
        ),
        times=IterationTimes(healthy_ns=slow.times.healthy_ns, slow_ns=slow.times.healthy_ns + own_ns),
        loss=ski_rental.Loss(
            seconds=iterations * own_ns / 1e9, generation=look.obs.generation, counted_iterations=look.obs.iterations
        ),
        subject=link,
    )
    if is_named:
        state, found = numbered(state, detected(found, link), look.policy)
    return Step(with_concurrent_link(state, found))


def _somewhere(own_ns: int, obs: Observation) -> SuspectedGroup:
    """Return all ranks as suspects, before the links are measured: a link between any two may be slow."""
    ranks = sorted(obs.ranks, key=lambda rank: rank.rank)
    named = [place(obs, rank) for rank in ranks[:NAMED_RANKS]]
    return SuspectedGroup(ranks=named, members=len(ranks), comm="", excess_ns=own_ns, compute_growth=1.0)


def _own_ns(state: RecoveryState, slow: SlowIncident, look: Look) -> int:
    """Return the part of an iteration that no named rank explains [ns]."""
    lost_ns = slow.times.excess_ns
    if look.obs.shared_unevenly and not adjust_microbatches.hindrance(look):
        return max(0, lost_ns - round(adjust_microbatches.left_ns(look)))
    each = (excess_ns(culprit, look, look.policy.consecutive) or 0.0 for culprit in state.culprits)
    return max(0, lost_ns - round(max(0.0, *each, 0.0)))


def _followed(state: RecoveryState, link: SlowIncident, slow: SlowIncident, look: Look) -> Step:
    """Count the loss of the iterations since the last look; close the incident once ranks explain all of it again."""
    own_ns = _own_ns(state, slow, look)
    well_ns = link.times.healthy_ns
    loss = ski_rental.accumulate(
        link.loss,
        generation=look.obs.generation,
        iterations=look.obs.iterations,
        slow_ns=well_ns + own_ns,
        healthy_ns=well_ns,
    )
    named_ns = link.times.named_ns or link.times.slow_ns
    link = replace(link, loss=loss, times=replace(link.times, slow_ns=well_ns + own_ns))
    # Noise around the healthy level is no relief: more than half of what the link cost must be gone.
    if own_ns > JUDGEMENT.action_share * (named_ns - well_ns):
        return Step(with_concurrent_link(state, _exchange_judged(replace(link, well_since=None), look)))
    since = look.obs.now if link.well_since is None else link.well_since
    if look.obs.now - since < JUDGEMENT.lasting_windows * look.policy.consecutive * slow.times.slow_ns / 1e9:
        return Step(with_concurrent_link(state, replace(link, well_since=since)))
    state = with_concurrent_link(state, None)
    if not link.is_incident:
        return Step(state)
    # Nothing was done against it, so it passed by itself; otherwise the exchange helped.
    if link.swapped is None or link.restart.switched_at is None:
        return incidents.passed(state, replace(link, well_since=since), look)
    state = durations.cut_short(state, link, link.restart.switched_at)
    times = replace(link.times, slow_ns=link.times.named_ns)
    link = replace(link, times=times, swapped=replace(link.swapped, after_ns=slow.times.slow_ns))
    return Step(state, events=[SlowClosed(incident=link, outcome="Helped", iteration_ns=slow.times.slow_ns)])


def _exchange_judged(link: SlowIncident, look: Look) -> SlowIncident:
    """Return the incident of a link for which ranks do not explain iterations; an exchange may not have been enough."""
    if link.swapped is None or link.swapped.failed or link.restart.switched_at is None:
        return link
    if (
        look.obs.now - look.obs.running_seconds < link.restart.switched_at
        or look.obs.iterations < EXCHANGED_WINDOWS * look.policy.consecutive
    ):
        return link
    return replace(link, swapped=replace(link.swapped, failed=NOT_ENOUGH, failed_at=look.obs.now))


def recovers(slow: SlowIncident, obs: Observation, policy: Policy) -> bool:
    """Check whether most of what a named link cost is gone, and no rank has stood out for long yet.

    The little that is left then is easily explained by a rank that other programs disturb for a second.
    """
    gone = slow.times.excess_ns <= JUDGEMENT.action_share * (slow.times.peak_ns - slow.times.well_ns)
    stood_out = obs.iterations - slow.onset.quiet_iteration
    return slow.link is not None and gone and stood_out < PROVEN_WINDOWS * policy.consecutive


def put_beside(state: RecoveryState, slow: SlowIncident, culprit: Culprit) -> tuple[RecoveryState, SlowIncident]:
    """Keep the incident of a link whose transfers a rank that is named now does not explain.

    The second value is the incident to name the rank in: another, or ``slow`` where the rank explains it.
    """
    link = slow.link
    own_ns = named_for_ns(culprit)
    # In the generation after an exchange, earlier measurements prove nothing.
    measured = slow.probed is not None and slow.probed.found == "Link" and slow.swapped is None
    if link is None or not slow.id:
        return state, slow
    if not measured and link.excess_ns < JUDGEMENT.link_over_computation * own_ns:
        return state, slow
    link_alone = replace(
        detected(slow, link),
        usual=None,
        times=replace(slow.times, slow_ns=max(slow.times.healthy_ns, slow.times.slow_ns - max(0, own_ns))),
        moved=None,  # that was against the rank
        applied=without(slow, adjust_microbatches.TYPE),
    )
    named = replace(
        slow,
        id="",
        subject=None,
        probed=None,
        applied=only(slow, adjust_microbatches.TYPE),
        outlook=None,
        swapped=None,
    )
    return with_concurrent_link(state, link_alone), named
