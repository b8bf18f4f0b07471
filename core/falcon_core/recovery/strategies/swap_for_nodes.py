"""Exchange the roles of running pods, so that slow nodes delay the job least (S3 against slow nodes, FALCON §5.3).

In a pipeline the iteration passes through each stage, and is as slow as the slowest of them. So slow nodes cost less
where they share a stage, and in a stage with little work. No pod is made and no spare is taken: the price is a
restart's. It applies where the job has several pipeline stages, and each node's slowness is its own.

**The model** is ``planning.placement``'s, with T = Σ_s t_s + (m − 1) · max_s t_s for a pipeline. t_s is what a healthy
rank of stage s computes in an iteration, c_s, ÷ m. Where the script does not say its number of micro-batches, or they
do not overlap, m is the number that explains the healthy iteration time T_h:

    T_h = (Σ c_s + (m − 1) · max c_s) / m, thus m = (Σ c_s − max c_s) / (T_h − max c_s), and at least 1.

So a schedule without overlap has m = 1, however many micro-batches it has. An exchange is expected to remove the share
of the slowdown that it removes in the model: what the model leaves out (communication, loading) is no part of either.
Of communication, only that is counted which links cost that are known to be slow (``slow_pairs``): so an exchange
against slow nodes does not put the traffic back that an earlier exchange took off a link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from falcon_core.planning.placement import placement
from falcon_core.planning.placement.placement_model import Roles, predict
from falcon_core.recovery.diagnosis.communicator_progress import communicators
from falcon_core.recovery.diagnosis.stragglers import COMPARED_PEERS
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.recovery.model.state import RecoveryState, with_each_changed
from falcon_core.recovery.model.treatments import SlowPair
from falcon_core.recovery.strategies import link_traffic
from falcon_core.recovery.strategies.swap_for_link import MIN_GAIN, Plan
from falcon_core.stats.medians import median

NOT_DESCRIBED: Final = "spec.parallelism does not describe all ranks"
NO_GAIN: Final = "slow nodes are where they cost least"
_MOST_MICRO_BATCHES: Final = 1024  # beyond, only the slowest stage counts
replace = msgspec.structs.replace


def hindrance(state: RecoveryState, look: Look, known: Sequence[SlowPair] = ()) -> str:
    """Return why roles cannot be exchanged against slow nodes now; "" if they can. ``known``: slow links."""
    if not _is_described(look):
        return NOT_DESCRIBED
    if look.policy.layout is not None and look.policy.layout.pipeline < 2:
        return "the job has one pipeline stage, so that all roles are alike"
    if state.concurrent_link is not None and state.concurrent_link.is_incident:
        return "a link is slow, too"
    if state.leaving or state.move is not None or look.obs.prepared:
        return "a pod is about to be moved to another node"
    if any(member.pod != "Present" or not member.node for member in look.obs.members):
        return "not all pods run"
    # Uneven shares change what a stage computes: the plan would move a load that is moved already.
    if look.obs.shared_unevenly:
        return "micro-batches are shared out unevenly"
    # The plan needs each stage's healthy computation, and a rank that was never well shows none.
    if any(slow.onset.from_start for slow in state.slowdowns):
        return "a rank was never seen well"
    return _untold(known, look) or unseated(state, look)


def _untold(known: Sequence[SlowPair], look: Look) -> str:
    """Return why it is not known what would cross the slow links; "" if it is, or there are none."""
    return link_traffic.hindrance(look.obs, communicators(look)) if known else ""


def unseated(state: RecoveryState, look: Look) -> str:
    """Return why it is not known what slow ranks would be called in other roles (``seated``); "" if it is."""
    if look.policy.layout is None or not _is_described(look):
        return NOT_DESCRIBED
    unknown = sorted(set(range(look.policy.layout.pipeline)) - stage_computation(state, look).keys())
    return f"it is not known what a well rank of stage {unknown[0]} computes" if unknown else ""


def _is_described(look: Look) -> bool:
    layout = look.policy.layout
    return (
        layout is not None
        and layout.world == len(look.obs.ranks)
        and not look.policy.world_size % max(1, len(look.obs.members))
    )


def stage_computation(state: RecoveryState, look: Look) -> dict[int, float]:
    """Return a healthy rank's computation in an iteration by pipeline stage [ns]; an unknown stage is absent.

    Of a stage without a well rank, what its slow ranks computed while they were well.
    """
    slow = {culprit.replica for culprit in state.culprits}
    replica_of = {rank.rank: rank.replica for rank in look.obs.ranks}
    well: defaultdict[int, list[float]] = defaultdict(list)
    for rank, level in zip(*map(np.ndarray.tolist, look.obs.compute_levels), strict=True):
        if replica_of[rank] not in slow:
            well[_stage(rank, look.policy)].append(level)
    # Well ranks of a stage show its work as it is now. What a slow rank computed before is only the second choice.
    found = {stage: median(levels) for stage, levels in well.items()}
    for culprit in state.culprits:
        if culprit.healthy_compute_ns:
            found.setdefault(_stage(culprit.rank, look.policy), float(culprit.healthy_compute_ns))
    return found


def _stage(rank: int, policy: Policy) -> int:
    assert policy.layout is not None
    return policy.layout.coordinates(rank).pipeline


def plan(state: RecoveryState, slow: SlowIncident, look: Look, known: Sequence[SlowPair] = ()) -> Plan | None:
    """Return the best assignment of the running pods to roles; None where today's is as good, all but noise.

    There is no ``hindrance``. ``slow``: the first of the incidents. ``known``: slow links.
    """
    level = look.obs.iteration_ns(look.policy.consecutive)
    well_ns = slow.times.well_ns
    if level is None or level <= well_ns:
        return None
    roles = _roles(stage_computation(state, look), well_ns, look)
    slowdowns = [1.0] * len(look.obs.members)
    for culprit in state.culprits:
        slowdowns[culprit.replica] = max(slowdowns[culprit.replica], culprit.slowdown)
    if known:
        roles = replace(roles, communicators=tuple(link_traffic.traffic(look.obs, communicators(look))))
    cluster = link_traffic.cluster_of(slowdowns, link_traffic.slow_ends(known, look.obs))
    found = placement.plan(roles, cluster, cost=placement.Cost(iterations=1.0))
    healthy = predict(roles, link_traffic.cluster_of([1.0] * len(slowdowns), []), range(len(slowdowns)))
    # The model's seconds leave out what it does not know. Only the share of the loss that it removes is carried over to
    # the measured iteration.
    slower = found.current_seconds - healthy
    share = (found.current_seconds - found.seconds) / slower if slower > 0 else 0.0
    gained_ns = share * (level - well_ns)
    if not found.moved_roles or gained_ns < MIN_GAIN * level:
        return None
    return Plan(
        pods_of=found.nodes, before_ns=round(level), expected_ns=round(level - gained_ns), removed_share=min(1.0, share)
    )


def _roles(computed_ns: dict[int, float], healthy_ns: int, look: Look) -> Roles:
    layout = look.policy.layout
    assert layout is not None
    cells: list[set[tuple[int, int]]] = [set() for _ in look.obs.members]
    for rank in look.obs.ranks:
        at = layout.coordinates(rank.rank)
        cells[rank.replica].add((at.expert_data, at.pipeline))
    count = micro_batches(list(computed_ns.values()), healthy_ns, look.obs)
    return Roles(
        cells=tuple(tuple(sorted(own)) for own in cells),
        stage_seconds=tuple(computed_ns[stage] / count / 1e9 for stage in range(layout.pipeline)),
        microbatches=(count,) * layout.expert_data,
        ranks_per_role=look.policy.world_size // len(look.obs.members),
    )


def micro_batches(computed_ns: list[float], healthy_ns: int, obs: Observation) -> int:
    """Return the number of micro-batches in an iteration of the pipeline: as the script reports it, else estimated.

    What the script says counts only where the iteration shows that they overlap. ``computed_ns``: of each stage in an
    iteration. ``healthy_ns``: the iteration time.
    """
    said = max((rank.sent.micro.per_rank for rank in obs.ranks if rank.sent.micro is not None), default=0)
    whole, longest = sum(computed_ns), max(computed_ns)
    if said and healthy_ns <= (whole + longest + (whole - longest) / said) / 2:
        return said
    if healthy_ns <= longest:
        return _MOST_MICRO_BATCHES
    fitted = (whole - longest) / (healthy_ns - longest)
    return max(1, min(_MOST_MICRO_BATCHES, round(fitted)))


def all_seated(state: RecoveryState, pods_of: tuple[int, ...], look: Look) -> RecoveryState:
    """Return the state whose incidents follow their nodes to the roles that these get in an exchange."""
    computed, named = stage_computation(state, look), state.culprits

    def followed(slow: SlowIncident) -> SlowIncident:
        if slow.culprit is None:
            return slow
        culprit = seated(slow.culprit, pods_of, computed, named, look.policy)
        return replace(slow, subject=culprit, outlook=None, passed_over="")

    return with_each_changed(state, followed)


def seated(
    culprit: Culprit, pods_of: tuple[int, ...], computed_ns: dict[int, float], named: list[Culprit], policy: Policy
) -> Culprit:
    """Return the slow rank as it is called after the exchange: its pod computes another role's ranks.

    ``computed_ns``: of a well rank of each stage. ``named``: all slow ranks, as they are called before. Nodes stay as
    slow as they were, so that a peer of the new role may be slow, too.
    """
    per_pod = policy.world_size // len(pods_of)
    replica = pods_of.index(culprit.replica)

    def moved(rank: int) -> int:
        of, place = divmod(rank, per_pod)
        return pods_of.index(of) * per_pod + place

    rank, also = moved(culprit.rank), [moved(other) for other in culprit.also]
    stage = _stage(rank, policy)
    well_ns = round(computed_ns[stage])
    # Nodes stay as slow as they were: a peer in the new role may be slow, and all others count as well.
    slowdowns = {pods_of.index(other.replica): other.slowdown for other in named}
    peers = {
        other: slowdowns.get(other // per_pod, 1.0)
        for other in range(policy.world_size)
        if _stage(other, policy) == stage and other not in (rank, *also)
    }
    typical = sorted(peers.values())[(len(peers) - 1) // 4] if peers else 1.0
    computed = {other: round(well_ns * slowdown) for other, slowdown in list(peers.items())[:COMPARED_PEERS]}
    return replace(
        culprit,
        rank=rank,
        replica=replica,
        compute_ns=round(well_ns * culprit.slowdown),
        healthy_compute_ns=well_ns,
        peers_compute_ns=round(well_ns * typical),
        peers=replace(culprit.peers, compute_ns=computed),
        samples=None,
        also=also,
    )
