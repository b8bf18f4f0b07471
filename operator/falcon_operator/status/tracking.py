"""Report how much Falcon sees of a job's calls: the condition ``Tracking``."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from falcon_core.wire.reporting.messages import Sight
from falcon_operator.status.conditions import Finding
from falcon_operator.status.text.format import listed
from falcon_operator.status.view import View

UNSEEN_SECONDS: Final = 120.0  # a program that imports and compiles has made no communicator yet
_UNSEEN: Final = (
    "Falcon saw no communicator: the program has made none yet, or its NCCL is linked statically (set"
    " NCCL_PROFILER_PLUGIN=/falcon/bin/libfalcon_shim.so in the training container), or it uses another library"
)
_WORDS: Final[dict[Sight, str]] = {
    "NoDriver": "CUDA's driver is not loaded",
    "OldDriver": "CUDA's driver lacks a function of CUDA 10",
    "NoThread": "no thread could be started to follow the device",
    "DriverFails": "CUDA's driver returns only errors",
    "CommunicatorsFull": "it has more communicators at the same time than the shim can follow",
    "CountersFull": "it has more peers, in all communicators together, than the shim can follow",
}


def tracking(view: View) -> Finding:
    """Build the finding on how much is seen of the ranks' calls."""
    if view.untracked:
        return Finding("Tracking", False, "None", f"Falcon sees no rank: {view.untracked}", shown=True)
    # A rank that has ended has no ring either, and says nothing about the shim.
    running = view.obs.reports.take(view.obs.reports.running)
    unseen = [rank.rank for rank in running.take(~running.tracked) if rank.sent.tracking == "NoRing"]
    if unseen and view.obs.running and view.obs.running_seconds >= UNSEEN_SECONDS:
        return Finding("Tracking", False, "None", f"{_ranks(unseen)}: {_UNSEEN}", shown=True)
    by_sight: dict[Sight, list[int]] = defaultdict(list)
    for rank in [rank for rank in running if rank.sent.sight != "Full"]:
        by_sight[rank.sent.sight].append(rank.rank)
    reasons = "; ".join(f"{_ranks(by_sight[sight])}: {words}" for sight, words in _WORDS.items() if by_sight[sight])
    if reasons:
        message = f"Falcon sees when calls are made, but not always when the device runs them: {reasons}"
        return Finding("Tracking", False, "HostOnly", message, shown=True)
    return Finding("Tracking", True, "Full", "Falcon sees the calls of every rank", quiet=True)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed([str(rank) for rank in ranks])}"
