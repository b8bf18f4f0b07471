"""Explain why a rank computes slowly, in the words of ``kubectl describe``."""

from __future__ import annotations

from falcon_core.model import Cause, Evidence
from falcon_core.recovery import Culprit
from falcon_operator.status.text.format import percent


def cause_words(culprit: Culprit, evidence: Evidence | None) -> str:
    """Say why a rank computes slowly, with the counter that shows it."""
    match culprit.cause:
        case Cause.CPU_THROTTLING:
            return (
                f"CPU throttling: its container was throttled in {percent(culprit.cause_culprit)} of periods"
                f" (peers: {percent(culprit.cause_peers)}; itself before: {percent(culprit.cause_healthy)})"
            )
        case Cause.CPU_CONTENTION:
            return (
                f"CPU contention: it was ready to run but waited {_delay(culprit.cause_culprit)} a second (peers:"
                f" {_delay(culprit.cause_peers)}; itself before: {_delay(culprit.cause_healthy)}), and no quota of its"
                f" container stopped it: {_neighbours(culprit)}"
            )
        case Cause.GARBAGE_COLLECTION:
            return (
                f"garbage collection: Python's collector stopped it for {_delay(culprit.cause_culprit)} a second"
                f" (peers: {_delay(culprit.cause_peers)}; itself before: {_delay(culprit.cause_healthy)}), and all"
                " ranks waited"
            )
        case Cause.LATE_DATA:
            return (
                "late data: it loses its time between two of its calls and hardly anywhere else"
                f" ({percent(culprit.cause_culprit)}; a slow device, which is slow everywhere, gives 0 %), so most"
                " likely it waits there for its input"
            )
        case Cause.HARDWARE:
            return f"its node reports {culprit.node_reports}"
        case _ if evidence is Evidence.TESTED_SLOW:
            return (
                "its machine computes slowly by itself, as a test against its peers' machines shows; neither the"
                " container's CPU quota nor a wait for the node's cores explains it"
            )
        case _:
            return "unknown: neither the container's CPU quota nor a wait for the node's cores explains it"


def _neighbours(culprit: Culprit) -> str:
    """Say who takes the cores, as far as the node's agent has reported it."""
    if culprit.neighbours:
        return f"no core of node {culprit.node} is idle; {culprit.neighbours}"
    return "something else on the node takes its cores, or its process has a limit of its own"


def _delay(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} s"
