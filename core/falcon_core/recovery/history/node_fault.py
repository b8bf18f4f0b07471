"""Decide whether the node or its rank's share of the work is at fault, before an action takes the node.

An action that takes a node needs more than a diagnosis, because most slowness is the job's own. Of 3 079 production
jobs 42 % straggled, and workers explained most of it in 1.7 % of those. A hot expert makes a healthy node slow, and the
work follows its rank to any spare. So with ``spec.mitigation.confidence: High`` a node is taken only if the evidence
says that the node is slow (``Evidence``; the first rule that applies decides):

1. *The role.* The replica was slow on one node, and is as slow on another: neither node is the cause. A slowdown of
   another size shows this on a third node only, since two nodes of a cluster may both be slow.
2. *Counters* show the cause: the container was throttled, or waited for cores that another process had. If they show
   the program's own garbage collections as the cause, the node is not at fault.
3. *The whole node.* All ranks of the node, two or more, are slow at once, though they hold different replicas of the
   model. A share of the work that grew would be the share of one replica.
4. *A test.* Its machine was measured and compared with its peers' while all ranks stood still, and is slow by itself.
   That also refutes rule 1.
5. *Never healthy.* A rank that was never seen healthy in its place may have had more to do from the beginning.
6. *It was healthy here.* A rank was healthy in its place and no longer is, and its calls show that its work is the same
   in each iteration, or that its bytes do not explain the time (``signals.attribution.work_kind``). Then its node is
   slow.
7. *It stays.* Otherwise the work may move. The operator learns how long slowness stayed with a node of this job before
   it passed by itself. Slowness that stays ``STAY_FACTOR`` to ``MOST_STAY_FACTOR`` times as long as the longest such
   stay is the node's: the more the known lengths scatter, the longer.

Of rule 7: at least ``LEAST_STAYS`` stays elsewhere have to be known. Each later stay is another trial, so the rate is
what counts: how many healthy nodes a day are found to be at fault by work that moves. With 24 stays a day it is below
5 %. With 300 it is below 10 % on the day on which they are learned, and below 3 % on the next one. This holds for
lengths that are exponential, and for Pareto's with an index of 1.5 or 1 (``test_stay_rates``). It does not hold where
lengths are of two kinds: if one stay of twenty is 200 times as long as the others, and 24 are known a day, it is 40 %
on the first day and 20 % on the next. Why (``stay_factor``):

- The next stay is the longest of n + 1 with a chance of 1/(n+1), whatever the lengths are. So a day's stays make few
  trials: their number grows as the logarithm of n.
- Above a level, lengths x have a tail x^-a, or a lighter one. Then k times the logarithm of the k-th longest ÷ the next
  one is exponential, with the same rate a for each k. Let S be the sum of the first m of them, at most ``TAIL_STAYS``,
  and r = ``TAIL_CHANCE``^(-1/m) - 1. A new longest stay exceeds the last one exp(r·S) times with a chance of
  ``TAIL_CHANCE``, for any a.
- With an index of 1 or more, it exceeds it ``MOST_STAY_FACTOR`` times with a chance of 1 in that factor at most. Few
  stays do not show the tail, so that this bounds the delay.

Where the calls themselves say that the work depends on the data, disturbances of a few iterations could pass for all
that moves, so that less than ``LEAST_ITERATIONS`` prove nothing there.

A job whose calls are constant is judged by rule 7 as well, once its slowness has passed from node to node so many times
without a break: each began where its predecessor ended (``_handed_over``), and so did the present one. Slowdowns that
merely passed say nothing, however many there are: most slow nodes are well again within hours. Were onsets independent
and 5.4 times ``handover_seconds`` apart in the mean (54 s in a job of short iterations), three would follow each other
so closely by chance in less than 5 % of the cases.
A slowness that lasts for a day is its node's there, since what is learned is forgotten by then.

A machine that was as fast as its peers in the test is not at fault by rules 5 and 7, unless its slowness stays. A test
measures matrix products alone: a rank that waits for its memory or its disk may run on a machine that computes well.

A slowdown of a node that comes back before any other node was slow counts as if it had never passed. What is learned
is forgotten after a day, since work moves in another way by then, and with the node that it was learned of, where its
replacement helped. Where the calls hide the work, rule 7 counts that day back from the onset. Otherwise a slowdown that
has to stay for longer than a day could never be the node's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.model import Cause, Evidence
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.suspects import Stay
from falcon_core.stats.medians import median

LEAST_STAYS = 3
STAY_FACTOR = 3.0  # the least: lengths that are alike show no tail
MOST_STAY_FACTOR = 60.0
TAIL_STAYS = 10  # of 16 remembered: the newest four are remembered whatever their length
TAIL_CHANCE = 0.01
ROLE_NODES = 2  # on which replacements did not help, whatever the sizes: three slow nodes in a row are no chance
LEAST_ITERATIONS = 1000
MOST_STAYS = 16
REMEMBERED_SECONDS = 86_400.0
HANDOVER_SECONDS = 10.0  # between the end of one slowness and the beginning of the next; or as long as a finding takes
_AT_FAULT = frozenset(
    (
        Evidence.COUNTER_SHOWS_CAUSE,
        Evidence.WAS_HEALTHY_HERE,
        Evidence.STAYED_LONGER,
        Evidence.WHOLE_NODE,
        Evidence.TESTED_SLOW,
    )
)
replace = msgspec.structs.replace


def suffices(evidence: Evidence | None, policy: Policy) -> bool:
    """Check whether the evidence is enough for taking the culprit's node; None: not judged yet."""
    return policy.confidence == "Low" or evidence in _AT_FAULT


def judged(state: RecoveryState, slow: SlowIncident, current: Culprit | None, look: Look) -> SlowIncident:
    """Return the incident with the evidence of now, where its culprit is the rank that stands out at this look."""
    culprit = slow.culprit
    if culprit is None or current is None or current.rank != culprit.rank:
        return slow
    evidence, needed = evidence_against(state, slow, culprit, look)
    return replace(slow, node_fault=replace(slow.node_fault, evidence=evidence, stay_iterations=needed))


def evidence_against(state: RecoveryState, slow: SlowIncident, culprit: Culprit, look: Look) -> tuple[Evidence, int]:
    """Return the evidence against a slow rank's node.

    The second value: after how many iterations with its node the slowness is the node's; 0 where that is not known, or
    not needed. ``slow`` says since when the rank is slow.
    """
    stays = _remembered(state.habits.stays, look.obs.now)
    evidence = _at_once(state, slow, culprit, stays, look)
    is_as_fast = _tested(slow, culprit) == "AsFast"
    if evidence is not Evidence.WORK_MAY_MOVE:
        return (Evidence.TESTED_AS_FAST if is_as_fast and evidence is Evidence.SINCE_START else evidence), 0
    if culprit.work == "Hidden":
        moved = _remembered(state.habits.stays, min(look.obs.now, slow.onset.at))
    else:
        moved = _handed_over(stays, slow, look)
    needed = _needed_iterations(moved, culprit)
    if needed and _stayed_iterations(slow, look.obs) >= needed:
        return Evidence.STAYED_LONGER, needed
    return Evidence.TESTED_AS_FAST if is_as_fast else evidence, needed


def _at_once(state: RecoveryState, slow: SlowIncident, culprit: Culprit, stays: Sequence[Stay], look: Look) -> Evidence:
    """Apply all rules but the last."""
    # A machine that was measured is slow, whatever else is known.
    tested = _tested(slow, culprit)
    if tested == "Slow":
        return Evidence.TESTED_SLOW
    # The slowness came along to another node before: evidence against the node comes after this.
    if _follows_the_role(stays, culprit, look.policy, as_fast=tested == "AsFast"):
        return Evidence.FOLLOWS_THE_ROLE
    if culprit.cause is Cause.GARBAGE_COLLECTION:
        return Evidence.PROGRAM
    if culprit.cause not in (Cause.UNKNOWN, Cause.LATE_DATA):  # late data do not show which node is late
        return Evidence.COUNTER_SHOWS_CAUSE
    # All ranks of the node are slow, which different work on one rank cannot explain.
    if _is_whole_node(culprit, look):
        return Evidence.WHOLE_NODE
    # A rank that was never fast here may simply have more work.
    if not _was_healthy(state, slow, culprit, look.policy):
        return Evidence.SINCE_START
    if culprit.work != "Hidden" and len(_elsewhere(_handed_over(stays, slow, look), culprit)) < LEAST_STAYS:
        return Evidence.WAS_HEALTHY_HERE
    return Evidence.WORK_MAY_MOVE


def _tested(slow: SlowIncident, culprit: Culprit) -> str:
    """Return the result of measuring the machine on which the culprit is now; "" where it was not measured there."""
    probed = slow.probed
    return probed.found if probed is not None and probed.node and probed.node == culprit.node else ""


def _follows_the_role(stays: Sequence[Stay], culprit: Culprit, policy: Policy, *, as_fast: bool) -> bool:
    """Check whether the replica took its slowness along to another node.

    A node that was left for a failure says so only of a replica that has not been well since. ``as_fast``: the machine
    was measured, so that its work alone is left, whatever the size of the slowdown elsewhere.
    """
    elsewhere = [stay for stay in stays if stay.replica == culprit.replica and stay.node != culprit.node]
    if culprit.healthy_compute_ns is None and any(stay.end == "Left" for stay in elsewhere):
        return True
    along = _taken_along(stays, culprit)
    return len({stay.node for stay in along}) >= ROLE_NODES or any(
        as_fast or _is_as_large(stay, culprit, policy) for stay in along
    )


def failed_on_enough_nodes(state: RecoveryState, culprit: Culprit, look: Look) -> bool:
    """Check whether replacements of this replica did not help on so many nodes that its work is the first suspect."""
    along = _taken_along(_remembered(state.habits.stays, look.obs.now), culprit)
    return len({stay.node for stay in along}) >= ROLE_NODES


def _taken_along(stays: Sequence[Stay], culprit: Culprit) -> list[Stay]:
    """Return the stays of the culprit's replica on other nodes whose replacement did not help."""
    of_replica = [stay for stay in stays if stay.replica == culprit.replica and stay.node != culprit.node]
    return [stay for stay in of_replica if stay.end == "NotHelped"]


def _is_refutable(stay: Stay) -> bool:
    """Check whether a stay shows the role only until a node proves to be the cause: an exchange has no size."""
    return stay.end == "NotHelped" and stay.slowdown > 0


def _is_as_large(stay: Stay, culprit: Culprit, policy: Policy) -> bool:
    """Check whether the slowdown of that stay was as large as the present one, as far as the two can be compared."""
    if not stay.slowdown or stay.against_peers != _is_against_peers(culprit):
        return True
    smaller, larger = sorted((stay.slowdown, culprit.slowdown))
    return larger <= smaller * (1 + 2 * policy.verify)


def _is_whole_node(culprit: Culprit, look: Look) -> bool:
    """Check whether all ranks of the culprit's node are slow, and hold more than one replica of the model."""
    mates = set(look.obs.reports.numbers[look.obs.reports.replicas == culprit.replica].tolist())
    if (
        look.policy.layout is None
        or look.policy.layout.world != len(look.obs.ranks)
        or len(mates) == len(look.obs.ranks)
    ):
        return False
    layout = look.policy.layout
    return mates <= {culprit.rank, *culprit.also} and len({layout.coordinates(rank).data for rank in mates}) > 1


def _was_healthy(state: RecoveryState, slow: SlowIncident, culprit: Culprit, policy: Policy) -> bool:
    """Check whether the rank was seen well, by its agent or in an earlier generation.

    An incident that begins with its generation was found against earlier generations, or against the peers alone. In
    the second case the job's level is no shorter than the slow iterations. Where sizes vary, an agent holds times
    against the usual bytes of its own generation, which may be more than those of earlier generations.
    """
    if culprit.healthy_compute_ns is not None:
        return True
    level = state.levels.settled
    if level is None or slow.onset.iteration > 1 or culprit.work == "InBytes":
        return False
    return slow.times.slow_ns > level.iteration_ns * (1 + policy.verify)


def _elsewhere(stays: Sequence[Stay], culprit: Culprit) -> list[Stay]:
    return [stay for stay in stays if stay.end == "Passed" and not _is_of(stay, culprit)]


def _handed_over(stays: Sequence[Stay], slow: SlowIncident, look: Look) -> list[Stay]:
    """Return the newest stays that passed the slowness on: the next one began where each ended, up to ``slow``."""
    began_at, within = slow.onset.at, handover_seconds(slow, look)
    chain: list[Stay] = []
    for stay in reversed([stay for stay in stays if stay.end == "Passed"]):
        if not stay.began_at or abs(began_at - stay.at) > within:
            break
        chain.append(stay)
        began_at = stay.began_at
    return chain


def handover_seconds(slow: SlowIncident, look: Look) -> float:
    """Return the longest time [s] from the end of one slowness to the next, if the second one took over the first."""
    return max(HANDOVER_SECONDS, JUDGEMENT.lasting_windows * look.policy.consecutive * slow.times.slow_ns / 1e9)


def is_handed_over(state: RecoveryState, slow: SlowIncident, look: Look) -> bool:
    """Check whether the slowness is passed from node to node: ``LEAST_STAYS`` stays in a row led to this one."""
    return len(_handed_over(_remembered(state.habits.stays, look.obs.now), slow, look)) >= LEAST_STAYS


def _needed_iterations(stays: Sequence[Stay], culprit: Culprit) -> int:
    """Return after how many iterations with its node a slowness is the node's; 0 while too little is known."""
    if len(_elsewhere(stays, culprit)) < LEAST_STAYS:
        return 0
    lengths = sorted((max(1, stay.iterations) for stay in stays if stay.end == "Passed"), reverse=True)
    needed = math.ceil(stay_factor(lengths) * lengths[0])
    return max(needed, LEAST_ITERATIONS if culprit.work == "Hidden" else 0)


def stay_factor(lengths: Sequence[int]) -> float:
    """Return how many times the longest stay a slowness has to last to be the node's, from lengths, longest first.

    The module's docstring has the reason. A next stay that is the longest takes the first place of n + 1, so that the
    k-th of these is the (k + 1)-th then: hence the factor k + 1.
    """
    tail = lengths[: TAIL_STAYS + 1]
    scatter = sum((k + 1) * math.log(tail[k - 1] / tail[k]) for k in range(1, len(tail)))
    exponent = (TAIL_CHANCE ** (-1 / (len(tail) - 1)) - 1) * scatter
    # Bound the exponent first: the power may be too large for a float.
    return max(STAY_FACTOR, min(MOST_STAY_FACTOR, math.exp(min(exponent, MOST_STAY_FACTOR))))


def _stayed_iterations(slow: SlowIncident, obs: Observation) -> int:
    """Return the length of the slowness in iterations; in a later generation, only the iterations of that one."""
    return obs.iterations - slow.onset.iteration + 1 if slow.onset.generation == obs.generation else obs.iterations


# -- what is learned -------------------------------------------------------------------------------------------------


def passed(state: RecoveryState, slow: SlowIncident, obs: Observation) -> RecoveryState:
    """Remember for how long a slowness stayed that has passed by itself."""
    culprit = slow.culprit
    if culprit is None or not culprit.node:
        return state
    # A rank that is well on its new node has not taken its slowness along.
    known = _remembered(state.habits.stays, obs.now)
    refuted = [stay for stay in _taken_along(known, culprit) if _is_refutable(stay)]
    stays = [stay for stay in known if stay not in refuted]
    before = _of_before(stays, culprit)
    # A short pause between two spells does not end a stay.
    if before is not None:
        stays.pop()
    stay = Stay(
        replica=culprit.replica,
        node=culprit.node,
        end="Passed",
        at=obs.now,
        began_at=before.began_at if before is not None else slow.onset.at,
        generation=obs.generation,
        last=obs.iterations,
        iterations=_with_stay_before(before, slow, obs),
        # The spell may have ended at its weakest: what counts is how slow the node has been.
        slowdown=max(culprit.slowdown, before.slowdown if before is not None else 0.0),
        against_peers=_is_against_peers(culprit),
    )
    return _remembering(state, [*stays, stay])


def usual_iterations(state: RecoveryState, culprit: Culprit, look: Look) -> int:
    """Return the longest stay of a slowness as large on another node before it passed [iterations]; 0: none known."""
    stays = _elsewhere(_remembered(state.habits.stays, look.obs.now), culprit)
    # A rank that is slower than its peers by nature is slow against them before it has slowed down at all.
    alike = [stay for stay in stays if stay.against_peers == _is_against_peers(culprit)]
    as_large = (stay for stay in alike if culprit.slowdown <= stay.slowdown * (1 + look.policy.verify))
    return max((stay.iterations for stay in as_large), default=0)


def stayed_iterations(state: RecoveryState, slow: SlowIncident, culprit: Culprit, obs: Observation) -> int:
    """Return how many iterations the slowdown has stayed on this node. It ends when another node becomes slow."""
    return _with_stay_before(_of_before(_remembered(state.habits.stays, obs.now), culprit), slow, obs)


def _of_before(stays: Sequence[Stay], culprit: Culprit) -> Stay | None:
    """Return the newest stay, if it was the culprit's and passed."""
    return stays[-1] if stays and stays[-1].end == "Passed" and _is_of(stays[-1], culprit) else None


def _with_stay_before(before: Stay | None, slow: SlowIncident, obs: Observation) -> int:
    """Return the iterations of a stay that went on after ``before``."""
    iterations = max(1, _stayed_iterations(slow, obs))
    if before is None:
        return iterations
    between = obs.iterations - before.last if before.generation == obs.generation else iterations
    return before.iterations + max(1, between)


def left(state: RecoveryState, slow: SlowIncident, obs: Observation) -> RecoveryState:
    """Remember that the culprit's node was left for a failure while it was slow."""
    return _ended(state, slow, "Left", obs)


def helped(state: RecoveryState, slow: SlowIncident) -> RecoveryState:
    """Forget what was learned of the culprit's replica: it was the node, and the node was left."""
    culprit = slow.culprit
    if culprit is None:
        return state
    return _remembering(state, [stay for stay in state.habits.stays if stay.replica != culprit.replica])


def stayed_with_role(state: RecoveryState, slow: SlowIncident, obs: Observation) -> RecoveryState:
    """Remember that the culprit's node is healthy in another role, and that the node in its old role is slow."""
    return _ended(state, slow, "NotHelped", obs)


def did_not_help(state: RecoveryState, slow: SlowIncident, look: Look) -> RecoveryState:
    """Remember that the rank is as slow on another node, if that is why the replacement did not help."""
    culprit = slow.culprit
    rank = None if culprit is None else next((rank for rank in look.obs.ranks if rank.rank == culprit.rank), None)
    if culprit is None or rank is None or not rank.sent.compute_ns:
        return state
    reference_ns = culprit.healthy_compute_ns or culprit.peers_compute_ns
    newest_ns = median(rank.sent.compute_ns[-look.policy.consecutive :])
    if newest_ns <= reference_ns * (1 + look.policy.verify):
        return state
    return _ended(state, slow, "NotHelped", look.obs, slowdown=culprit.slowdown)


def tested_slow(state: RecoveryState, node: str) -> RecoveryState:
    """Forget that a replacement of this node did not help: the node is slow by itself, so no role explains it."""
    return _remembering(state, [stay for stay in state.habits.stays if stay.node != node or not _is_refutable(stay)])


def _ended(
    state: RecoveryState,
    slow: SlowIncident,
    end: Literal["NotHelped", "Left"],
    obs: Observation,
    *,
    slowdown: float = 0.0,
) -> RecoveryState:
    """Remember that a stay has ended. ``slowdown``: its size; 0.0: any slowdown elsewhere is the same one."""
    culprit = slow.culprit
    if culprit is None or not culprit.node:
        return state
    stay = Stay(
        replica=culprit.replica,
        node=culprit.node,
        end=end,
        at=obs.now,
        generation=obs.generation,
        last=obs.iterations,
        slowdown=slowdown,
        against_peers=_is_against_peers(culprit),
    )
    return _remembering(state, [*_remembered(state.habits.stays, obs.now), stay])


def _remembering(state: RecoveryState, stays: list[Stay]) -> RecoveryState:
    return replace(state, habits=replace(state.habits, stays=_bounded(stays)))


def _is_against_peers(culprit: Culprit) -> bool:
    """Check whether the culprit's slowdown is a ratio to its peers, and not to its own healthy computation."""
    return culprit.healthy_compute_ns is None


def _is_of(stay: Stay, culprit: Culprit) -> bool:
    return stay.replica == culprit.replica and stay.node == culprit.node


def _remembered(stays: Sequence[Stay], now: float) -> list[Stay]:
    return [stay for stay in stays if now - stay.at <= REMEMBERED_SECONDS]


def _bounded(stays: list[Stay]) -> list[Stay]:
    """Drop the shortest of the stays that passed, so that disturbances do not push out what work takes to move.

    The newest stay: they show whether work moves.
    """
    while len(stays) > MOST_STAYS:
        shortest = min(stays[: -LEAST_STAYS - 1], key=lambda stay: (stay.end != "Passed", stay.iterations, stay.at))
        stays = _without(stays, shortest)
    return stays


def _without(stays: Sequence[Stay], dropped: Stay) -> list[Stay]:
    """Return the other stays. Where the dropped one was handed over and handed on, its neighbours are linked instead.

    The next stay then begins as long after the previous one's end as the larger of the two gaps that were there, so
    that work which is handed over without a break stays known as such, and a break stays a break.
    """
    passed_by = [stay for stay in stays if stay.end == "Passed"]
    kept = [stay for stay in stays if stay is not dropped]
    place = next((place for place, stay in enumerate(passed_by) if stay is dropped), 0)
    if not 0 < place < len(passed_by) - 1:
        return kept
    previous, following = passed_by[place - 1], passed_by[place + 1]
    if not dropped.began_at or not following.began_at:
        began_at = 0.0
    else:
        began_at = previous.at + max(following.began_at - dropped.at, dropped.began_at - previous.at, key=abs)
    return [replace(stay, began_at=began_at) if stay is following else stay for stay in kept]
