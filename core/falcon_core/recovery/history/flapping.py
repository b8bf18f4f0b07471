"""Remember nodes that were slow and recovered by themselves, so that the losses of short spells add up.

The loss of a slowdown that passed decays with the quiet time since: it halves in each window of ``spec.recovery``, and
is forgotten when less than a hundredth is left. If a rank on the same node is slow again within a window, that is the
same incident and not another diagnosis. If a slowdown named no rank, its loss is remembered for the node that alone
stood out in it (``diagnosis.intermittent``).

**Work that moves** (a hot expert) makes different nodes slow in turn. So the remembered loss counts from the third time
on. If the work is handed over (``node_fault.is_handed_over``), only its excess over the remembered loss of all other
nodes counts: most of it has to stay with the node. Spells with quiet times between them excuse no other node, however
many nodes have them.

**The bound**, for nodes that flap, up to ``MOST_RELIEVED`` of them, alone or in turn with quiet times between them that
are longer than a hand-over. Take any stretch of time in which one of them was quiet for no more than a window
altogether. Each second lost on it still counts at least half at the end, so the node is acted on before its loss in
such a stretch reaches twice the price (ski-rental without pieces: once the price). What the newest spell loses until
its rank is named comes on top.

**Micro-batches that move** make a spell cheap, and cost something themselves. Both count for a node that was slow too
often for chance (``spell_share``). Then the bound is exceeded by at most the newest spell's moves.

A preparation has hysteresis: it goes on when its culprit recovers, and is given back only if the culprit stays well for
``HOLD_SECONDS``. No pod takes over meanwhile, and after that the next preparation waits as after a failure. Of a node
that flaps (``flaps``) the pod takes over though the node is well, since its earlier spells have paid for that. It is
given back only if it does not become ready in ``PREPARE_DEADLINE_SECONDS``.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery.history import node_fault, spell_share
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Culprit, Relieved, SlowIncident, as_named
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies.replace_node import PREPARE_DEADLINE_SECONDS, RETRY_SECONDS

HOLD_SECONDS = 60.0
LEAST_TIMES = 2  # that a node was slow before
MOST_RELIEVED = 48  # nodes; those that have lost most. Fewer of a job are disturbed within a window
replace = msgspec.structs.replace


def after_look(slow: SlowIncident, now: float, *, well: bool) -> SlowIncident:
    """Return the incident with the time since which its culprit is well."""
    if not well:
        return replace(slow, well_since=None)
    return slow if slow.well_since is not None else replace(slow, well_since=now)


def is_over(slow: SlowIncident, now: float, hold_seconds: float = 0.0) -> bool:
    """Check whether a slowdown whose culprit is well at this look is over, or may come back.

    ``hold_seconds``: for how long the culprit has to stay well where nothing is being prepared.
    """
    if slow.well_since is None:
        return False
    if slow.phase == "Mitigating":
        # A node that flaps is well most of the time: its pod may take as long to become ready as any.
        hold_seconds = PREPARE_DEADLINE_SECONDS if flaps(slow) else HOLD_SECONDS
    return now - slow.well_since >= hold_seconds


def flaps(slow: SlowIncident) -> bool:
    """Check whether its node was slow too often for chance, and most of the incident's loss is of earlier spells."""
    return slow.node_fault.too_often and slow.carried_seconds > slow.loss.seconds / 2


def may_be_left(slow: SlowIncident) -> bool:
    """Check whether a prepared pod may take over now: the culprit is slow, or will be slow again since it flaps."""
    return slow.well_since is None or flaps(slow)


def remember(state: RecoveryState, slow: SlowIncident, now: float, policy: Policy, *, node: str = "") -> RecoveryState:
    """Return the state after a slowdown that passed by itself. ``node``: its node, if no rank was named."""
    node = slow.culprit.node if slow.culprit is not None else node
    if not node:
        return state
    state = spell_share.counted(state, node, slow, now, policy, seconds=spell_share.moves_seconds(slow))
    known = _of(state, node)
    # Loss of earlier spells counts less with time, so that an old spell does not condemn a node.
    before = _decayed_seconds(known, slow.onset.at, policy) if known is not None else 0.0
    passed = Relieved(
        id=slow.id or (known.id if known is not None else ""),
        node=node,
        at=now,
        times=known.times + 1 if known is not None and before else 1,
        # What earlier spells had carried into this one is in ``before`` already: it must not count twice.
        loss_seconds=before + slow.loss.seconds - slow.carried_seconds,
        failures=max(slow.restart.failures, known.failures if known is not None and before else 0),
        retry_at=now + RETRY_SECONDS if slow.phase == "Mitigating" else max(slow.retry_at, (known or slow).retry_at),
    )
    kept = _others(state, node)
    while len(kept) >= MOST_RELIEVED:
        kept.remove(min(kept, key=lambda relieved: _decayed_seconds(relieved, now, policy)))
    return _remembering(state, [*kept, passed])


def resume(
    state: RecoveryState,
    slow: SlowIncident,
    culprit: Culprit,
    now: float,
    policy: Policy,
    *,
    nodes: int,
    handed_over: bool,
) -> SlowIncident:
    """Add what is remembered of the culprit's node to an incident that has just found its culprit.

    ``nodes``: of the job. ``handed_over``: the slowness is passed from node to node (``node_fault.is_handed_over``).
    """
    if not handed_over and spell_share.stands_out(state, culprit.node, nodes):
        slow = _with_moves(state, slow, culprit, now, policy)
    known = _of(state, culprit.node)
    if known is None:
        return slow
    still_counts = _decayed_seconds(known, now, policy) > 0
    failures = max(slow.restart.failures, known.failures if still_counts else 0)
    restart = replace(slow.restart, failures=failures)
    slow = replace(slow, retry_at=max(slow.retry_at, known.retry_at), restart=restart)
    # Work that moves makes many nodes slow once or twice. Only a node that is slow again and again carries its loss
    # on.
    if known.times >= LEAST_TIMES or slow.node_fault.too_often:
        # Work that moves made the other nodes slow as well, so that it has to stay mostly with this one.
        others = _others(state, culprit.node) if handed_over else []
        against = sum(_decayed_seconds(relieved, now, policy) for relieved in others)
        carried = max(0.0, _decayed_seconds(known, now, policy) - against)
        loss = replace(slow.loss, seconds=slow.loss.seconds + carried)
        slow = replace(slow, loss=loss, carried_seconds=slow.carried_seconds + carried)
    # Soon after the last spell it is the same incident, under the same number.
    if known.id and not slow.id and now - known.at <= policy.window_seconds:
        slow = replace(slow, id=known.id, times=as_named(slow.times))
    return slow


def _with_moves(state: RecoveryState, slow: SlowIncident, culprit: Culprit, now: float, policy: Policy) -> SlowIncident:
    """Add what the moves of micro-batches against a node that stands out have cost, and the spells that they cut."""
    carried = spell_share.cost_seconds(state, culprit.node, now, policy)
    loss = replace(slow.loss, seconds=slow.loss.seconds + carried)
    fault = replace(slow.node_fault, too_often=True)
    return replace(slow, loss=loss, carried_seconds=carried, node_fault=fault)


def slow_again(state: RecoveryState, slow: SlowIncident, look: Look) -> set[str]:
    """Return the nodes that flap, with the present slowdown as a further spell.

    Not those that may have taken the slowness over from another node, which was slow until it began.
    """
    known, began_at, within = state.habits.node_spells, slow.onset.at, node_fault.handover_seconds(slow, look)
    until_now = {each.node for each in known if abs(began_at - each.at) <= within}
    lately = {each.node for each in known if began_at - each.at <= look.policy.window_seconds}
    often = {node for node in lately if spell_share.stands_out(state, node, look.obs.node_count)}
    return {node for node in often if not until_now - {node}}


def forget(state: RecoveryState, node: str) -> RecoveryState:
    """Return the state after the node was left."""
    return _remembering(spell_share.forget(state, node), _others(state, node))


def _remembering(state: RecoveryState, relieved: list[Relieved]) -> RecoveryState:
    return replace(state, habits=replace(state.habits, relieved=relieved))


def _of(state: RecoveryState, node: str) -> Relieved | None:
    return next((relieved for relieved in state.habits.relieved if relieved.node == node), None)


def _others(state: RecoveryState, node: str) -> list[Relieved]:
    return [relieved for relieved in state.habits.relieved if relieved.node != node]


def _decayed_seconds(relieved: Relieved, now: float, policy: Policy) -> float:
    """Return the rest of the loss after the quiet time [s]."""
    left = spell_share.kept_share(relieved.at, now, policy)
    return relieved.loss_seconds * left if left >= spell_share.FORGOTTEN_SHARE else 0.0
