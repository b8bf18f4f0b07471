"""Describe what is known of a node that was evicted from the job."""

from __future__ import annotations

from collections.abc import Sequence

from falcon_operator.api.trainingrun import NodeVerdict
from falcon_operator.base.time_format import clock_time

GOOD_NEWS = frozenset({"AsFast", "UsableAgain", "ReadyAgain", "LiftedByHand"})
NODE_RETURNS = frozenset({"UsableAgain", "UsedSlow"})


def verdicts_words(verdicts: Sequence[NodeVerdict]) -> list[str]:
    """Return the verdicts as sentences, in their order; of each node only the newest says what holds now."""
    newest = {verdict.node: verdict for verdict in verdicts}
    return [verdict_words(verdict, holds=newest[verdict.node] is verdict) for verdict in verdicts]


def verdict_words(verdict: NodeVerdict, *, holds: bool = True) -> str:
    """Return the verdict as a sentence without its full stop. ``holds``: no later one is known of this node."""
    node, at = verdict.node, clock_time(verdict.at)
    match verdict.outcome:
        case "UsableAgain":
            return f"{node} can be used again since {at}"
        case "UsedSlow":
            return f"{node} was used again at {at}, although it is slow" + (
                f": {verdict.detail}" if verdict.detail else ""
            )
    fence = "fenced" if verdict.fenced else "not fenced"
    if holds:
        return f"{node} {fence}: {_why(verdict)}"
    return f"{node} was {fence} at {at} ({_why(verdict).replace('it is ', 'it was ', 1)})"


def _why(verdict: NodeVerdict) -> str:
    ratio = f"{verdict.ratio:.1f}x" if verdict.ratio is not None else "?"
    match verdict.outcome:
        case "NotReady":
            return "it is NotReady"
        case "Slower":
            return f"its burn-in took {ratio} the time of its peers'"
        case "AsFast":
            return f"its burn-in was as fast as its peers' ({ratio} their time)"
        case "ReadyAgain":
            return "it is Ready again, and the job names no WarmPool to test it with"
        case "LiftedByHand":
            return "the fence was removed by hand"
        case "NoPeers":
            return "the pool has no scores to compare with"
        case "NoPool":
            return "the job names no WarmPool to compare with"
        case _:
            return verdict.detail or "the burn-in gave no score"
