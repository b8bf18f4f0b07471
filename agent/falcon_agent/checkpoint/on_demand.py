"""Report at once when the pod holds the checkpoint that Falcon requested, since its ranks wait from then on.

By the regular reports alone the operator would hear of it up to ``REPORT_SECONDS`` later, which is as long as the ranks
wait for their restart (``falcon_torch.requests.HOLD_SECONDS``).
"""

from __future__ import annotations

from collections.abc import Callable

from falcon_core.times import SAVE_SECONDS
from falcon_core.wire.reporting.messages import Plan
from falcon_core.wire.saves.checkpoint import Held


class Answer:
    """What this pod holds, of its own ranks and of other pods', since a checkpoint was asked for."""

    def __init__(self) -> None:
        self._asked = (0, 0)  # generation, and the number of the checkpoint that its ranks are to save
        self._since = 0.0  # monotonic, seconds
        self._known: list[Held] | None = None

    def look(self, plan: Plan | None, held: Callable[[], list[Held]], now: float) -> bool:
        """Return whether there is something new to report, for as long as the operator waits for the checkpoint.

        ``held``: returns what the pod holds. ``now``: a monotonic time, in seconds.
        """
        if plan is None or not plan.checkpoint:
            return False
        asked = (plan.generation, plan.checkpoint)
        if asked != self._asked:
            # The ranks may have saved it before this look: what is held at the first look is news.
            self._asked, self._since, self._known = asked, now, None
        if now - self._since > SAVE_SECONDS:
            return False
        before, self._known = self._known, held()
        return self._known != before
