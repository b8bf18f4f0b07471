"""Name a rank whose slow spells are each too short: add up the evidence against it over several spells.

A rank that is slower by less than the median rule's factor has to stand out in ``lasting_windows`` windows of C
iterations, because noise can explain a single window. A node that flaps may never be slow for so long. So the windows
of separate spells are counted together. A window counts if each of its iterations lies after the onset and is slow.
Between two spells no evidence is collected. Windows do not overlap.

- *For the suspect*: it stands out in the window, and no other node does.
- *Against it*: no node stands out, or several nodes do, as in a phase of the job itself. That takes a window away. When
  none is left, the suspicion ends.
- *Another*: a rank of another node stands out alone. It is the suspect from then on, with this window alone.
  Disturbances and work that moves make different nodes slow in turn.

*Moved micro-batches* cut a spell short for the job, and the agents measure the ranks' computation again: no window may
follow. So the slow iterations for which micro-batches were moved before a rank was named count as a window
(``at_move``). If no rank stands out in them, they count neither for nor against the suspect. A rank that alone stands
out in them is named if its node was slow too often for chance (``history.spell_share``), unless it may be work that
moves (``flapping.slow_again``): nodes that flap in turn suspect each other, and random disturbances reach any node.

The rank is named at the window that makes it ``lasting_windows``. The loss of the earlier spells is remembered for its
node (``history.flapping``) and counts from then on. A spell within ``spec.recovery``'s window after the last goes on
with the same diagnosis, so that one window is enough to name the rank again.

**The bound.** If each spell holds a slow window and nothing speaks against the rank, it is named at its
``lasting_windows``-th spell at the latest, and at the second at the earliest. Where no micro-batches move, it is named
in this way only if it stood out alone in more than half of the slow windows since the first suspicion.

**The first rank** saves, logs and evaluates for all others, at equal distances of iterations. If its spells begin at
equal distances, its role explains them, and no rank is named.

**What this cannot do.** No agent reports an onset for a spell shorter than C iterations. A spell shorter than C + 2
holds no window, unless micro-batches are moved for it. Nothing is counted while some ranks do not send their newest
iterations one by one, as in a large job before they are asked.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice, pairwise, takewhile
from statistics import median

import msgspec
import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.diagnosis.stragglers import compared_ranks, stragglers
from falcon_core.recovery.diagnosis.workload_check import Straggler
from falcon_core.recovery.model.observation import Look, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.suspects import Suspect
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

_MOST_BEGINNINGS = 3
_LEAST_SPELLS = 2
_FIRST_RANK = 0
_MOST_TIMES = 64  # ranks whose iteration times are looked at: in a synchronous job they are all alike
replace = msgspec.structs.replace


def look(state: RecoveryState, slow: SlowIncident, look: Look) -> tuple[RecoveryState, list[Straggler]]:
    """Count the new windows of an incident that names no rank. The second value: the suspect, once it may be named."""
    suspect = _remembered(state.suspicions.suspect, look)
    found: list[Straggler] = []
    # Iterations of an earlier generation ran in other processes, and perhaps on other nodes.
    if slow.onset.generation == look.obs.generation:
        ranks = compared_ranks(look.obs)
        for last in _slow_windows(suspect, slow, look):
            found = stragglers(_up_to(last, ranks, look.policy), look.policy, slow, windows=1)
            suspect = _after_window(suspect, found, (last - look.policy.consecutive + 1, last), look)
    state = _with_suspect(state, suspect)
    if suspect is None or not may_be_named(suspect, look.policy):
        return state, []
    return state, [straggler for straggler in found if straggler[0].rank == suspect.rank]


def at_move(
    state: RecoveryState, slow: SlowIncident, flapping: Collection[str], look: Look
) -> tuple[RecoveryState, list[Straggler]]:
    """Count the slow iterations for which micro-batches are moved now as a window.

    The second value: the suspect, once it may be named. ``flapping``: nodes that were slow too often for chance.
    """
    newest = _newest_slow(slow, look)
    ranks = _cut_to(newest, compared_ranks(look.obs))
    found = stragglers(ranks, replace(look.policy, consecutive=newest), slow, windows=1)
    if not found:
        return state, []
    suspect = _remembered(state.suspicions.suspect, look)
    span = look.obs.iterations - newest + 1, look.obs.iterations
    if _counted(suspect, look) < span[0]:  # a window of this look may hold these iterations already
        suspect = _after_window(suspect, found, span, look)
        suspect = None if suspect is None else replace(suspect, at_move=True)
    state = _with_suspect(state, suspect)
    if suspect is None or _nodes(found, look) != {suspect.node}:
        return state, []
    of_role = suspect.rank == _FIRST_RANK and not may_be_named(suspect, look.policy)
    if suspect.node not in flapping or of_role:
        return state, []
    return state, [straggler for straggler in found if straggler[0].rank == suspect.rank]


def _newest_slow(slow: SlowIncident, look: Look) -> int:
    """Return how many of the newest iterations to compare: C at most, without the first that is slow (as above)."""
    least_ns = slow.times.well_ns * (1 + look.policy.verify / 2)
    newest = (rank.sent for rank in look.obs.ranks if rank.fresh and rank.sent.iterations == look.obs.iterations)
    times = islice((sent.iteration_ns for sent in newest if sent.iteration_ns), _MOST_TIMES)
    in_a_row = [sum(1 for _ in takewhile(lambda taken: taken >= least_ns, reversed(each))) for each in times]
    return max(1, min(look.policy.consecutive, int(median(in_a_row)) - 1)) if in_a_row else 1


def _cut_to(newest: int, ranks: list[RankSeen]) -> list[RankSeen]:
    """Return the ranks with so many newest computations, of those that know as many."""
    known = [rank for rank in ranks if len(rank.sent.compute_ns) >= newest]
    return [replace(rank, sent=replace(rank.sent, compute_ns=rank.sent.compute_ns[-newest:])) for rank in known]


def _with_suspect(state: RecoveryState, suspect: Suspect | None) -> RecoveryState:
    return replace(state, suspicions=replace(state.suspicions, suspect=suspect))


def may_be_named(suspect: Suspect, policy: Policy) -> bool:
    """Check whether enough windows of several spells speak against the suspect, and the spells are no role's."""
    spells = len(suspect.beginnings)
    if suspect.windows < JUDGEMENT.lasting_windows or spells < _LEAST_SPELLS:
        return False
    if suspect.rank != _FIRST_RANK:
        return True
    return spells == _MOST_BEGINNINGS and not _are_at_equal_distances(suspect.beginnings, policy)


def named(state: RecoveryState, culprit: Culprit, slow: SlowIncident, look: Look) -> RecoveryState:
    """Return the state after a rank was named, by pieces or not: its next spell goes on with the diagnosis."""
    before = state.suspicions.suspect
    if before is not None and not (before.rank == culprit.rank and before.node == culprit.node):
        before = None
    span = slow.onset.iteration, look.obs.iterations
    suspect = _seen_in(span, before, culprit.rank, culprit.node, look)
    return _with_suspect(state, replace(suspect, windows=JUDGEMENT.lasting_windows))


def of_spell(state: RecoveryState, slow: SlowIncident) -> str:
    """Return the node that alone stood out in a spell that passed without a name; "" where none did."""
    suspect = state.suspicions.suspect
    if suspect is None or suspect.generation != slow.onset.generation or suspect.since < slow.onset.iteration:
        return ""
    remembered = any(relieved.node == suspect.node and relieved.at >= suspect.at for relieved in state.habits.relieved)
    return "" if remembered else suspect.node


def is_known_by_a_move(state: RecoveryState) -> bool:
    """Check whether the suspect's newest window is of the iterations for which micro-batches were moved."""
    suspect = state.suspicions.suspect
    return suspect is not None and suspect.at_move


def since(state: RecoveryState, slow: SlowIncident, policy: Policy) -> int:
    """Return the iteration since which the suspect has been slow in this spell; 0 where it may be the onset's."""
    suspect = state.suspicions.suspect
    if suspect is None or suspect.generation != slow.onset.generation:
        return 0
    return suspect.since if suspect.since > slow.onset.iteration + policy.consecutive else 0


def _remembered(suspect: Suspect | None, look: Look) -> Suspect | None:
    """Return the suspect, unless it was too long ago, or the node was left since."""
    if suspect is None or look.obs.now - suspect.at > look.policy.window_seconds:
        return None
    nodes = {member.node for member in look.obs.members}
    return suspect if suspect.node in nodes else None


def _slow_windows(suspect: Suspect | None, slow: SlowIncident, look: Look) -> list[int]:
    """Return the last iterations of the windows that are slow throughout and were not counted yet, as far as known.

    So are the iterations before and after a window: what a rank counts as an iteration may begin where the culprit has
    computed already, so that its computation shows an iteration sooner than its peers' waits.
    """
    width, known = look.policy.consecutive, RECENT_ITERATIONS
    newest = (rank.sent for rank in look.obs.ranks if rank.fresh and rank.sent.iterations == look.obs.iterations)
    whole = (sent.iteration_ns for sent in newest if len(sent.iteration_ns) == known)
    times = np.array(list(islice(whole, _MOST_TIMES)), dtype=np.float64)
    if not len(times):
        return []
    # The median of the ranks: one that counts from another call must not decide.
    is_slow = np.median(times, axis=0) >= (slow.times.well_ns) * (1 + look.policy.verify / 2)
    before = look.obs.iterations - known  # iterations that the reports do not hold
    first, windows = max(slow.onset.iteration - 1, _counted(suspect, look), before + 1) - before, []
    while first + width < known:
        if is_slow[first - 1 : first + width + 1].all():
            first += width
            windows.append(before + first)
        else:
            first += 1
    return windows


def _counted(suspect: Suspect | None, look: Look) -> int:
    """Return up to which iteration of this generation windows are counted."""
    return suspect.iteration if suspect is not None and suspect.generation == look.obs.generation else 0


def _up_to(last: int, ranks: list[RankSeen], policy: Policy) -> list[RankSeen]:
    """Return the ranks with the window up to an iteration; none where that is not known of most of them."""
    cut: list[RankSeen] = []
    for rank in ranks:
        kept = len(rank.sent.compute_ns) - (rank.sent.iterations - last)
        if policy.consecutive <= kept <= len(rank.sent.compute_ns):
            # Healthy computations before a short spell would hide how slow the rank is.
            window = rank.sent.compute_ns[kept - policy.consecutive : kept]
            sent = replace(rank.sent, iterations=last, compute_ns=window)
            cut.append(replace(rank, sent=sent))
    return cut if 2 * len(cut) > len(ranks) else []


def _nodes(found: list[Straggler], look: Look) -> set[str]:
    replicas = {rank.rank: rank.replica for rank in look.obs.ranks}
    return {look.obs.members[replicas[out.rank]].node for out, _ in found}


def _after_window(before: Suspect | None, found: list[Straggler], span: tuple[int, int], look: Look) -> Suspect | None:
    """Return the suspect after a slow window, the iterations ``span``, in which these stood out."""
    nodes = _nodes(found, look)
    # Two nodes at the same time, or none, speak against the suspect.
    if len(nodes) != 1:
        return None if before is None else replace(before, windows=max(0, before.windows - 1), iteration=span[1])
    slow_ranks = sorted((out for out, _ in found), key=lambda out: -out.ratio)
    rank, node = slow_ranks[0].rank, nodes.pop()
    goes_on = before is not None and before.windows > 0 and before.node == node
    if goes_on and before is not None and before.rank in {out.rank for out in slow_ranks}:
        rank = before.rank
    else:
        before = None
    return _seen_in(span, before, rank, node, look)


def _seen_in(span: tuple[int, int], before: Suspect | None, rank: int, node: str, look: Look) -> Suspect:
    """Return the suspect after it was slow in the iterations ``span``; ``before``: what is known of the same rank."""
    first, last = span
    same_generation = before is not None and before.generation == look.obs.generation
    # A window that follows the last one at once belongs to the same spell.
    beginnings = before.beginnings if before is not None and same_generation else []
    if not beginnings or before is None or first > before.iteration + look.policy.consecutive:
        beginnings = [*beginnings, first][-_MOST_BEGINNINGS:]
    return Suspect(
        rank=rank,
        node=node,
        windows=min(1 + (before.windows if before is not None else 0), JUDGEMENT.lasting_windows),
        at=look.obs.now,
        generation=look.obs.generation,
        iteration=last,
        beginnings=beginnings,
    )


def _are_at_equal_distances(beginnings: list[int], policy: Policy) -> bool:
    """Check whether all distances are about a multiple of the smallest; not every spell is found."""
    distances = [later - begin for begin, later in pairwise(beginnings)]
    smallest = min(distances)
    return all(abs(distance - round(distance / smallest) * smallest) <= policy.consecutive for distance in distances)
