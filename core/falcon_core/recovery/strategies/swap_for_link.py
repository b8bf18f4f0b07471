"""Exchange the roles of running pods, so that a slow link carries the lightest traffic (S3, FALCON §5.3).

It applies if a link is named and the two nodes at its ends are known, or the single node whose adapter is slow. Another
assignment of pods to roles must put fewer bytes on it. No pod is made and no spare is taken: all ranks restart in their
pods, as other ranks. So the price is that of a restart without a spare. If all ranks can save a checkpoint on demand
that outlives the exchange, no work is done again.

**The model** is ``planning.placement``'s. Only what a slow link adds counts: B bytes of the slow communicator on that
link take E seconds longer than healthy ones, so b bytes in its place are taken to add b/B · E. Where a measurement
alone has named the link (record 101), no communicator has grown slow: then E is all that iterations take longer, and B
all that crosses the link. What a link carries is what the ranks report of an iteration's calls
(``signals.calls.traffic``). Everything else stays as long as it is. E is the least of the newest windows
(``diagnosis.slow_links``), so that the gain is rather larger than the model says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from falcon_core.planning.placement import placement
from falcon_core.planning.placement.placement_model import Roles, links
from falcon_core.recovery.diagnosis.communicator_progress import Names, communicators
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import SlowLink
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.treatments import Exchanged, SlowPair, Swapped
from falcon_core.recovery.strategies import link_traffic
from falcon_core.recovery.strategies.strategy_type import StrategyType

TYPE: Final = "SwapNodes"
FACTS: Final = StrategyType(
    name=TYPE,
    explanation=(
        "SwapNodes lets running pods exchange their roles, so that a slow link between two nodes carries the lightest"
        " traffic, and slow nodes compute the pipeline stages where they cost least; all processes restart in their"
        " pods, and no pod is made."
    ),
    default_seconds=13.0,  # a guess of the standstill; the first exchange measures the job's own
    needs_node_evidence=True,
    restarts=True,
    least_pods=3,  # with fewer there is a single link
    does_nothing="finds no lighter link",
    act="pods exchange their roles",
    would_act="pods would exchange their roles",
    would_have_acted="roles would have been exchanged",
    judged="pods have exchanged their roles",
    machine_leaves="its pod takes another role",
    event="RolesExchanged",
)
MIN_GAIN: Final = 0.03  # of an iteration: below it an exchange is not worth a restart, and has not helped
MOST_NAMED: Final = 8  # pods of an exchange that are named
NO_GAIN = "no other assignment of pods to roles would be faster"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A better assignment."""

    pods_of: tuple[int, ...]  # for each replica, the replica whose pod takes its role
    before_ns: int  # iteration time
    expected_ns: int
    removed_share: float  # of what the slowdown costs


def hindrance(state: RecoveryState, link: SlowLink, look: Look) -> str:
    """Return why roles cannot be exchanged against a slow link now; "" if they can."""
    if state.leaving or state.move is not None or look.obs.prepared:
        return "a pod is about to be moved to another node"
    # Roles go from pod to pod: each of them has to be there to give its own away.
    if any(member.pod != "Present" or not member.node for member in look.obs.members):
        return "not all pods run"
    if not _ends(link, look.obs):
        return f"the link is one of several between {link.members} ranks, and it is not known which"
    names = communicators(look)
    why = link_traffic.hindrance(look.obs, names)
    if why:
        return why
    return "" if _slow_bytes(link, look.obs, names) else "it is not known how much the slow link carries"


def has_ends(link: SlowLink) -> bool:
    """Check whether it is known which link it is, or whose."""
    is_one = len(link.ranks) == link.members and len({place.node for place in link.ranks}) <= 2
    return bool(link.node or link.pair) or is_one


def end_nodes(link: SlowLink) -> frozenset[str]:
    """Return the nodes at the ends of the slow link: one for a node's own adapter; none where it is not known."""
    if not has_ends(link):
        return frozenset()
    return frozenset({link.node} if link.node else {place.node for place in link.pair or link.ranks})


def _ends(link: SlowLink, obs: Observation) -> tuple[int, ...]:
    """Return the replicas at the ends of the slow link: one for a node's own adapter; none where it is not known."""
    return link_traffic.replicas_on(end_nodes(link), obs, is_adapter=bool(link.node))


def _slow_bytes(link: SlowLink, obs: Observation, names: Names) -> int:
    """Return the bytes of the slow communicator on a link in an iteration; of several communicators, the most.

    Where none is known: all that crosses the link, of communicators of one kind, that which puts most.
    """
    # A slow communicator with a name was measured by itself: what else crosses the link need not be slow.
    if link.comm:
        puts = (
            put for rank in obs.ranks for name, put in link_traffic.by_collectives(rank, names) if name in link.comm
        )
        return max(puts, default=0)
    ends, most = set(_ends(link, obs)), defaultdict[str, int](int)
    for communicator in link_traffic.traffic(obs, names):
        if any(ends <= set(pair) for pair in links(communicator)):
            most[communicator.kind] = max(most[communicator.kind], round(communicator.bytes_per_link))
    return sum(most.values())


def seconds_per_byte(link: SlowLink, look: Look) -> float:
    """Return the cost of each byte that crosses the slow link in an iteration [s]; 0: not known."""
    return _seconds_per_byte(link, look.obs, communicators(look))


def _seconds_per_byte(link: SlowLink, obs: Observation, names: Names) -> float:
    slow_bytes = _slow_bytes(link, obs, names)
    return link.excess_ns / 1e9 / slow_bytes if slow_bytes else 0.0


def plan(link: SlowLink, healthy_ns: int, look: Look, known: Sequence[SlowPair] = ()) -> Plan | None:
    """Return the best assignment of the running pods to roles; None where today's is as good, all but noise.

    There is no ``hindrance``. ``healthy_ns``: iteration time. ``known``: further slow links (``slow_pairs``).
    """
    level = look.obs.iteration_ns(look.policy.consecutive)
    names = communicators(look)
    rate, count = _seconds_per_byte(link, look.obs, names), len(look.obs.members)
    # Without a loss now there is nothing that an exchange could remove, whatever the link's figures say.
    if level is None or level <= healthy_ns or not rate:
        return None
    roles = Roles(
        cells=(((0, 0),),) * count,  # every pod computes equally fast in a role
        stage_seconds=(level / 1e9,),
        microbatches=(1,),
        communicators=tuple(link_traffic.traffic(look.obs, names)),
        ranks_per_role=max(1, look.policy.world_size // count),
    )
    slow = [(_ends(link, look.obs), rate), *link_traffic.slow_ends(known, look.obs, otherwise=rate)]
    cluster = link_traffic.cluster_of((1.0,) * count, slow)
    found = placement.plan(roles, cluster, cost=placement.Cost(iterations=1.0))
    gained_ns = 1e9 * (found.current_seconds - found.seconds)
    if not found.moved_roles or gained_ns < MIN_GAIN * level:
        return None
    return Plan(
        pods_of=found.nodes,
        before_ns=round(level),
        expected_ns=round(max(healthy_ns, level - gained_ns)),
        removed_share=min(1.0, gained_ns / (level - healthy_ns)),
    )


def described(found: Plan, obs: Observation) -> Swapped:
    """Return the record of an exchange: the pods that move, and the expected effect."""
    moved = [(of, role) for role, of in enumerate(found.pods_of) if of != role]
    pods = [
        Exchanged(pod_name=obs.members[of].pod_name, node=obs.members[of].node, role=of, next_role=role)
        for of, role in sorted(moved)
    ]
    return Swapped(pods=pods[:MOST_NAMED], total=len(pods), before_ns=found.before_ns, expected_ns=found.expected_ns)


def did_not_help(swapped: Swapped, after_ns: float) -> bool:
    """Check whether iterations are hardly shorter than before."""
    return after_ns > swapped.before_ns * (1 - MIN_GAIN)
