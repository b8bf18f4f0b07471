"""Derive the computation of one micro-batch in a pipeline from the gaps between a rank's sends and receives.

A stage receives before a pass and sends after it, so that nearly all passes of a step lie between the step's first and
last transfer. The first stage begins with a forward pass before its first send, and ends with a backward pass after its
last receive: one of each, of one of its v chunks where the schedule is interleaved, lies outside. With the share m and
the computation C between the first and the last transfer, a micro-batch takes

    C ÷ m on any other stage, and C ÷ (m − 1/v) on the first.

The computation outside (optimizer, loading) does not depend on the share.
"""

from __future__ import annotations

import numpy as np

from falcon_core.signals.attribution.compute_and_wait import outside_calls_ns
from falcon_core.signals.calls.stream import Calls, Flags, Trait
from falcon_core.signals.iterations.segmenter import Iteration


def micro_batch_ns(iteration: Iteration, share: int) -> int | None:
    """Return the nanoseconds that a micro-batch takes, without waits; ``share``: micro-batches in the iteration.

    None where that does not show: calls whose ends are not known, others than a pipeline's, an interrupted iteration.
    """
    calls = iteration.calls
    if iteration.interrupted or not calls.measured.all():
        return None
    sends, receives = calls.has(Trait.SENDS), calls.has(Trait.RECEIVES)
    at = np.flatnonzero(sends | receives)
    passes = _passes(sends[at], receives[at], share)
    if passes is None or passes <= 0:
        return None
    return round(_between_ns(calls, int(at[0]), int(at[-1])) / passes)


def _passes(sends: Flags, receives: Flags, share: int) -> float | None:
    """Return the number of micro-batches whose passes lie between an iteration's first and last transfer: [n], [n].

    None where these are not those of a whole step of so many micro-batches.
    """
    count = int(sends.sum())
    if not count or count % share or int(receives.sum()) % share:
        return None
    is_first_stage = bool(sends[0])
    if is_first_stage != bool(receives[-1]):
        return None
    chunks = (count // share + 1) / 2  # v chunks send v times forward, and all but the first send backward
    return share - 1 / chunks if is_first_stage else share


def _between_ns(calls: Calls, first: int, last: int) -> int:
    """Return the nanoseconds in no call, from the end of one call to the start of another."""
    begin, end = int(calls.ends_ns[first]), int(calls.starts_ns[last])
    return max(0, outside_calls_ns(calls.starts_ns, calls.ends_ns, begin, end))
