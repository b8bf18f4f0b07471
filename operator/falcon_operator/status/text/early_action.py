"""Explain an action that is due before the loss has reached its price (``recovery.history.durations``)."""

from __future__ import annotations

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery import Applied
from falcon_operator.status.text.format import percent, seconds


def due_words(price: Applied | Candidate) -> str:
    """Return what the loss has to reach: ``a replacement's cost``, or ``50 % of a replacement's cost``."""
    share = "" if price.due_share >= 1 else f"{percent(price.due_share)} of "
    return f"{share}a replacement's cost"


def why_early(candidate: Candidate) -> str:
    """Return why an action is due earlier, as the end of a sentence; "" where it is due at its price."""
    if candidate.due_share >= 1:
        return ""
    rest = candidate.rest_seconds
    in_words = seconds(rest) if rest < 120 else f"{rest / 60:.0f} min"
    where = "in this job"
    if candidate.seen_elsewhere:
        own = candidate.seen - candidate.seen_elsewhere
        where = f"in this cluster, {own} of them in this job"
    return (
        f"; that is earlier than usual, because {candidate.seen} slowdowns of this cause and depth were seen {where},"
        f" and they suggest that this one will last about {in_words} more"
    )
