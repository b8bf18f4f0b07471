"""Drop stragglers that only look slow because their agents learned the time per byte badly.

Where sizes depend on the data, agents report times as they would be at the usual bytes. They also report how much
longer the newest bytes make them (``RankSignals.load``). Each agent learns this from its rank's own times. A rank whose
agent has learned too little looks slow as soon as the bytes of all ranks grow, though it computes no longer than its
peers.

So a rank whose load is less than its peers' has to stand out with the peers' load as well. A slow rank with fewer bytes
that computes no longer than its peers is passed over: no rank waits for it, and a repair gains nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.model.observation import RankSeen
from falcon_core.signals.changepoint.median_rule import Outlier

Straggler = tuple[Outlier, list[RankSeen]]  # and the ranks that do the same work


def waited_for(found: Iterable[Straggler]) -> list[Straggler]:
    """Return those of the stragglers who would stand out with their peers' load, too."""
    typical: dict[int, float | None] = {}  # load by group
    kept: list[Straggler] = []
    for out, group in found:
        if id(group) not in typical:
            loads = [rank.sent.load for rank in group if rank.sent.load is not None]
            typical[id(group)] = statistics.median_high(loads) if len(loads) > 1 else None
        peers = typical[id(group)]
        if peers is None or _stands_out(out, group, peers):
            kept.append((out, group))
    return kept


def _stands_out(out: Outlier, group: list[RankSeen], peers_load: float) -> bool:
    """Check whether most of the excess is left if its bytes explain as much of its time as its peers' bytes do."""
    load = next((rank.sent.load for rank in group if rank.rank == out.rank), None)
    if load is None or load >= peers_load:
        return True
    healthy_ns = out.peers_ns if out.peers_ns < out.value_ns else out.value_ns / max(out.ratio, 1.0)
    return out.value_ns * load / peers_load - healthy_ns >= JUDGEMENT.action_share * (out.value_ns - healthy_ns)
