"""Compare how often a node was slow with how often random disturbances make any node of the job slow.

Disturbances that no node causes strike each of N nodes alike. Of n spells, a certain node then has m or more with the
chance P(binomial(n, 1/N) ≥ m), and any of the nodes with N times that chance at most. A node of which this is
``CHANCE`` or less was slow too often for that: it flaps. Three spells are enough if no other node was slow, from five
nodes on (N · N⁻³ ≤ ``CHANCE``), and two from 21 nodes on. Each spell is another trial: about one random disturbance
of twenty meets a node that stands out.

Nodes that flap in turn hide each other. So k nodes, ``MOST_IN_TURN`` at most, stand out where all of the spells are of
these, and chance does not explain that: any k nodes have all n spells with the chance C(N, k) · (k/N)ⁿ at most. In a
job of eight nodes that takes three spells of one node, five of two, and eight of three.

Spells of other nodes count since the node's first one, also if those nodes were left since. Otherwise the node that
stays longest would stand out.

**Micro-batches that move** make a spell cheap, and name no rank. Such spells count here for the node that alone stood
out when they moved. What they and the moves cost is its loss once it stands out, and is no node's loss before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import NodeSpells, SlowIncident, only
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies import adjust_microbatches
from falcon_core.stats.binomial import chance_of_at_least

CHANCE = 0.05  # with which so many random disturbances make any node stand out, counted once
MOST_IN_TURN = 3  # nodes that flap, of which each stands out though the others' spells lie between its own
MOST_NODES = 16  # that are known; those that were slow last
FORGOTTEN_SHARE = 0.01  # of what a spell cost: less is forgotten
replace = msgspec.structs.replace


def counted(
    state: RecoveryState, node: str, slow: SlowIncident, now: float, policy: Policy, *, seconds: float
) -> RecoveryState:
    """Return the state with one more spell of the node, which has passed now.

    ``seconds``: what micro-batches that moved charge to the node.
    """
    known = _of(state, node)
    if known is None or not known.times or kept_share(known.at, slow.onset.at, policy) < FORGOTTEN_SHARE:
        known = NodeSpells(node=node, at=now, since=now)
    before = cost_seconds(state, node, slow.onset.at, policy)
    newest = replace(known, at=now, times=known.times + 1, moved_seconds=before + seconds)
    others = [replace(other, others=other.others + 1) for other in _others(state, node)]
    return _with(state, [*others, newest][-MOST_NODES:])


def forget(state: RecoveryState, node: str) -> RecoveryState:
    """Return the state after the node was left: only that it was slow is still known."""
    known = _of(state, node)
    if known is None:
        return state
    return _with(state, [*_others(state, node), replace(known, times=0, moved_seconds=0.0)])


def stands_out(state: RecoveryState, node: str, nodes: int) -> bool:
    """Check whether the node was slow too often for chance, the present spell included; ``nodes``: of the job."""
    known = _of(state, node)
    if known is None or not known.times:
        return False
    own, in_all = known.times + 1, known.times + 1 + known.others
    in_turn = sum(each.at >= known.since for each in state.habits.node_spells)
    few = in_turn <= MOST_IN_TURN and in_turn < nodes
    if few and math.comb(nodes, in_turn) * (in_turn / nodes) ** in_all <= CHANCE:
        return True
    return nodes * chance_of_at_least(own, in_all, 1 / nodes) <= CHANCE


def cost_seconds(state: RecoveryState, node: str, now: float, policy: Policy) -> float:
    """Return what the node's spells cost for which micro-batches moved [s]; it halves in each quiet window."""
    known = _of(state, node)
    if known is None:
        return 0.0
    kept = kept_share(known.at, now, policy)
    return known.moved_seconds * kept if kept >= FORGOTTEN_SHARE else 0.0


def kept_share(at: float, now: float, policy: Policy) -> float:
    """Return the share that still counts of what was lost until ``at``."""
    return float(0.5 ** (max(0.0, now - at) / policy.window_seconds))


def _of(state: RecoveryState, node: str) -> NodeSpells | None:
    return next((known for known in state.habits.node_spells if known.node == node), None)


def moves_seconds(slow: SlowIncident) -> float:
    """Return what moving micro-batches against the slowdown has cost, there and back [s]."""
    moves = only(slow, adjust_microbatches.TYPE)
    return 2.0 * sum(move.overhead_seconds for move in moves if not move.observed_only)


def _with(state: RecoveryState, spells: Sequence[NodeSpells]) -> RecoveryState:
    return replace(state, habits=replace(state.habits, node_spells=list(spells)))


def _others(state: RecoveryState, node: str) -> list[NodeSpells]:
    return [known for known in state.habits.node_spells if known.node != node]
