"""A slowdown as a rank's agent reports it."""

from __future__ import annotations

from falcon_core.signals.changepoint import Slowdown
from falcon_core.wire.messages import Onset


def onset_of(slowdown: Slowdown, unix_offset_ns: int) -> Onset:
    """Return the report; wall = ring clock + ``unix_offset_ns``."""
    return Onset(
        iteration=slowdown.first_iteration,
        unix_ns=slowdown.start_ns + unix_offset_ns,
        reported_iteration=slowdown.reported_iteration,
        before_ns=slowdown.before_ns,
        after_ns=slowdown.after_ns,
    )
