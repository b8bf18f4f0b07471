"""Decide when the device times every cycle of a rank, not only one in ``SAMPLE_EVERY`` (FALCON §4.3, profiling).

Where calls return when they are enqueued (NCCL), the host's times show at once that iterations take longer. Only the
device's times show which ranks compute longer, and whose transfers do. One cycle in 20 shows it after minutes. So a
rank is profiled from its onset on, and again from its relief on, which has to be seen as well. All ranks that wait for
each other see both within a few iterations. So each agent decides by itself, and no order has to arrive.

A profile lasts as long as what is compared: all windows of C cycles, and one for cycles that are under way. For pulses
it is longer, by the window of their means. While the slowdown lasts it is repeated in one cycle of ``_APART``, so that
the job's newest state is known.

A rank is profiled, too, until its healthy computation is known: in a generation, and again after a change of its calls,
whose healthy level is learned again. At one cycle in 20 that takes hundreds of iterations, in which a rank that becomes
slow has nothing to be compared with. The first iterations may still warm up, and teach nothing.

A rank whose computation scatters much is compared by the median of many iterations (``lasting_compute``). At one cycle
in 20 these would be many minutes old, so a quarter of its cycles is timed.
"""

from __future__ import annotations

from typing import Final

from falcon_core.judgement import JUDGEMENT
from falcon_core.signals.changepoint.detector import Slowdown
from falcon_core.signals.changepoint.expected_time import LEAST_SAMPLES
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS

SAMPLE_EVERY: Final = 20  # cycles, of which the device times one
_LEARNING: Final = 4 * LEAST_SAMPLES  # cycles, at most, until the healthy computation is known
_QUARTER: Final = (16, 64)  # cycles that are timed, of as many, where the computation scatters much
_APART: Final = 10  # lengths of a profile, from the begin of a profile to the begin of the next


class Profile:
    """Decides for one rank, asked after each read of its ring."""

    def __init__(self) -> None:
        self._onset: int | None = None  # iteration at whose end the newest onset was certain
        self._begun_at: int | None = None  # iteration, of the newest profile
        self._learns_from: int | None = None  # iteration since which the healthy computation is being learned

    def is_on(
        self,
        slowdown: Slowdown | None,
        iterations: int,
        consecutive: int,
        *,
        learns: bool = False,
        scatters: bool = False,
    ) -> bool:
        """Check whether every cycle is to be timed now.

        ``iterations``: the rank's, which may begin again with another period; ``consecutive``: C; ``learns``: the
        rank's cycle is known, and its healthy computation is not; ``scatters``: its computation differs much from one
        iteration to the next.
        """
        on, of = _QUARTER
        return self._follows(slowdown, iterations, consecutive, learns=learns) or (scatters and iterations % of < on)

    def _follows(self, slowdown: Slowdown | None, iterations: int, consecutive: int, *, learns: bool) -> bool:
        """Check whether an onset, a relief or the begin of learning asks for every cycle."""
        is_learning = self._is_learning(iterations, learns=learns)
        onset = None if slowdown is None else slowdown.reported_iteration
        has_changed = onset != self._onset
        self._onset = onset
        if has_changed or (self._begun_at is not None and iterations < self._begun_at):
            self._begun_at = iterations
        if self._begun_at is None or is_learning:
            return is_learning
        since, length = iterations - self._begun_at, (JUDGEMENT.lasting_windows + 1) * consecutive
        if slowdown is not None:
            length += slowdown.window
        return (since if slowdown is None else since % (_APART * length)) < length

    def _is_learning(self, iterations: int, *, learns: bool) -> bool:
        """Check whether every cycle is to be timed so that the healthy computation is learned."""
        if not learns:
            self._learns_from = None
            return False
        if self._learns_from is None or iterations < self._learns_from:
            self._learns_from = iterations
        return 0 <= iterations - self._learns_from - SETTLED_ITERATIONS < _LEARNING
