"""Remember the links that roles were exchanged against, and keep heavy traffic and copies off them.

After the exchange little or nothing of the job crosses such a link, so that no report shows whether it has recovered.
It counts as slow for an hour, and as long as both of its nodes belong to the job. (In FALCON's study, §3.4, a slowdown
of a large job's network lasted 72 minutes on average.)
"""

from __future__ import annotations

from typing import Final

import msgspec

from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import SlowLink
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.treatments import SlowPair
from falcon_core.recovery.strategies.swap_for_link import end_nodes, seconds_per_byte

KEPT_SECONDS: Final = 3600.0
MOST: Final = 8  # the newest
replace = msgspec.structs.replace


def remembered(state: RecoveryState, link: SlowLink, look: Look) -> RecoveryState:
    """Return the state that knows the link against which roles are exchanged now."""
    ends = end_nodes(link)
    if len(ends) != (1 if link.node else 2):
        return state  # between two pods of one node
    pair = SlowPair(nodes=sorted(ends), at=look.obs.now, seconds_per_byte=seconds_per_byte(link, look))
    return _remembering(state, [*_others(state, ends), pair][-MOST:])


def forgotten(state: RecoveryState, link: SlowLink) -> RecoveryState:
    """Return the state without the link: the exchange did not help, so it was not what made iterations long."""
    return _remembering(state, _others(state, end_nodes(link)))


def standing(state: RecoveryState, obs: Observation) -> list[SlowPair]:
    """Return the links between the job's present nodes that still count as slow."""
    members = {member.node for member in obs.members}
    return [pair for pair in _recent(state, obs.now) if members.issuperset(pair.nodes)]


def recent(state: RecoveryState, now: float) -> list[frozenset[str]]:
    """Return the end nodes of the links that still count as slow, wherever the job runs now."""
    return [frozenset(pair.nodes) for pair in _recent(state, now)]


def _recent(state: RecoveryState, now: float) -> list[SlowPair]:
    return [pair for pair in state.habits.slow_pairs if 0 <= now - pair.at < KEPT_SECONDS]


def _remembering(state: RecoveryState, pairs: list[SlowPair]) -> RecoveryState:
    return replace(state, habits=replace(state.habits, slow_pairs=pairs))


def _others(state: RecoveryState, ends: frozenset[str]) -> list[SlowPair]:
    return [known for known in state.habits.slow_pairs if frozenset(known.nodes) != ends]
