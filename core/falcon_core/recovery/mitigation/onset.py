"""Open a slowdown: at an onset that the agents report, or when a generation is slow from its first iteration.

A slowdown that begins here names no rank and is a suspicion (phase ``Suspected``). It begins in one of these cases:

- Most ranks report an onset (``signals.changepoint.detector``), or a group that the others wait for where groups meet
  rarely (``signals.job.pace``).
- The generation's settled level is above that of the job's earlier generations.
- The replicas of a young generation are not alike (``rebalance.since_start``).
- A rank is suddenly slow, and micro-batches can be moved (``early_rebalance``).
"""

from __future__ import annotations

import msgspec

from falcon_core.planning import ski_rental
from falcon_core.recovery.diagnosis import slow_from_start
from falcon_core.recovery.mitigation import early_rebalance, rebalance
from falcon_core.recovery.model.observation import Look, Observation, Ranks
from falcon_core.recovery.model.slowdown import IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.recovery.model.state import RecoveryState, with_leader
from falcon_core.wire.reporting.messages import Onset

replace = msgspec.structs.replace


def look(state: RecoveryState, look: Look) -> RecoveryState:
    """Return the state with a slowdown that has begun; called while none is open."""
    if not look.obs.running or state.stop is not None:
        return state
    tracked = look.obs.reports.take(look.obs.reports.fresh & (look.obs.reports.iterations != 0))
    onsets = [sent.onset for sent in tracked.sent if sent.onset is not None]
    level = look.obs.iteration_ns(look.policy.consecutive, fresh=True)
    if level is None:
        return state
    # In a synchronous job all ranks become slow at once: an onset that only few report is their own noise.
    if 2 * len(onsets) > len(tracked) or len(look.obs.behind):
        return with_leader(state, _reported(state, look.obs, onsets, int(level)))
    healthy_ns = None if onsets else _healthy_ns(state, look, tracked)
    if healthy_ns is None:
        return state if onsets else early_rebalance.look(state, look)
    found = slow_from_start.slowdown(look.obs, healthy_ns=round(healthy_ns), slow_ns=int(level))
    # No agent has reported an onset: what counts as reported is the newest iteration.
    newest = int(tracked.iterations.max())
    return with_leader(state, replace(found, onset=replace(found.onset, reported_iteration=newest)))


def _reported(state: RecoveryState, obs: Observation, onsets: list[Onset], level_ns: int) -> SlowIncident:
    first = sorted(onsets, key=lambda onset: onset.unix_ns)[len(onsets) // 2]
    healthy_ns = min(first.before_ns, state.levels.healthy_ns or first.before_ns)
    # Where groups of ranks meet rarely, the next slowest group bounds what a repair can gain.
    if obs.others_ns is not None:
        healthy_ns = max(healthy_ns, int(obs.others_ns))
    # A slowdown that outlives its culprit's has another reason from now on.
    outlived = any(relieved.at >= first.unix_ns / 1e9 for relieved in state.habits.relieved)
    return SlowIncident(
        id="",
        phase="Suspected",
        onset=SlowdownOnset(
            at=first.unix_ns / 1e9,
            generation=obs.generation,
            iteration=first.iteration,
            reported_iteration=first.reported_iteration,
            opened_iteration=obs.iterations,
            quiet_iteration=obs.iterations if outlived else 0,
        ),
        times=IterationTimes(healthy_ns=healthy_ns, slow_ns=level_ns),
        loss=ski_rental.Loss(generation=obs.generation, counted_iterations=max(0, first.iteration - 1)),
    )


def _healthy_ns(state: RecoveryState, look: Look, tracked: Ranks) -> float | None:
    """Return the healthy iteration time [ns] if the generation began slowly; else None."""
    if slow_from_start.against_earlier(state, look, tracked) and state.levels.settled is not None:
        return state.levels.settled.iteration_ns
    return rebalance.since_start(state, look)
