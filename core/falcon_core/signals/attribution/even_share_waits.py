"""Save a rank's healthy call durations while uneven micro-batch shares change its call sequence."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from falcon_core.signals.attribution.compute_and_wait import WaitBaseline
from falcon_core.signals.attribution.measured import Measured
from falcon_core.signals.calls.stream import Flags, Ints
from falcon_core.signals.iterations.segmenter import Iteration


class KeptWaits(msgspec.Struct, frozen=True):
    """The healthy times of a cycle."""

    tokens: Ints  # [calls]
    measured: Flags  # [calls]
    waits: WaitBaseline

    def of(self, iteration: Iteration) -> WaitBaseline | None:
        """Return them by the positions of an iteration whose calls are the same; None where it makes others.

        The iteration may begin at another call of the cycle than those before did.
        """
        tokens, measured = iteration.calls.tokens, iteration.calls.measured
        healthy = self.waits.healthy
        if healthy is None or tokens.shape != self.tokens.shape:
            return None
        for first in np.flatnonzero(self.tokens == tokens[0]).tolist():
            if (np.roll(self.tokens, -first) == tokens).all() and (np.roll(self.measured, -first) == measured).all():
                by_call = np.zeros((2, len(tokens)))
                by_call[:, self.measured] = healthy
                return WaitBaseline(np.roll(by_call, -first, axis=1)[:, measured])
        return None


def kept(recent: Sequence[Measured], waits: WaitBaseline) -> KeptWaits | None:
    """Return the healthy times with the calls that they belong to; None while they are being learned."""
    whole = next((each.iteration for each in reversed(recent) if not each.iteration.interrupted), None)
    if whole is None or waits.healthy is None or waits.healthy.shape[1] != int(whole.calls.measured.sum()):
        return None
    return KeptWaits(whole.calls.tokens.copy(), whole.calls.measured.copy(), waits.copied())
