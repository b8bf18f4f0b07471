"""Let a simulated job take nodes back that it has left, and begin again when its recovery has given up."""

from __future__ import annotations

import math

import msgspec

from falcon_core.recovery import Policy, RecoveryState
from falcon_core.recovery.strategies import replace_node
from falcon_core.recovery.views import prices
from falcon_sim.cluster.burn_ins import BurnIns
from falcon_sim.cluster.cluster import Cluster

replace = msgspec.structs.replace


def leave_and_return(
    state: RecoveryState, cluster: Cluster, burn_ins: BurnIns, policy: Policy, now: float
) -> RecoveryState:
    """Test the nodes that the job has left, take them back, or use them as the last resort. ``now``: seconds."""
    state = burn_ins.look(state, cluster.nodes, now)
    if cluster.waiting:
        price = prices.overhead_seconds(state, policy, replace_node.FACTS)
        state = cluster.recall(state, burn_ins.usable(state, cluster.nodes), price, now)
        again = burn_ins.next_at(state)
        if math.isfinite(again):
            cluster.wake(max(now, again))
    return state


def begun_again(state: RecoveryState) -> RecoveryState:
    """Return what the recovery still knows of a job that it gave up and that is submitted again."""
    levels = replace(state.levels, settled=None)
    return replace(state, levels=levels, slowdowns=[], stop=None, hang=None, attempts=[])
