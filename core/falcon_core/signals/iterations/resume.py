"""Continue the iteration numbers of an earlier agent, so that they stay the same over its restart.

The earlier agent leaves an anchor: the record that began its present iteration. The ring may still hold that record,
may have overwritten it, or may not have reached it yet (it holds more than the earlier agent had left unread).
"""

from __future__ import annotations

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import CallLog


class Anchor(msgspec.Struct, frozen=True):
    """A place to count on from, for a reader that finds the beginning of the ring overwritten."""

    record: int  # number of the record that began an iteration
    iteration: int  # its number
    period_calls: int


def first_cycle(anchor: Anchor, log: CallLog, begins: int, lag: int) -> tuple[int, int]:
    """Choose the first cycle's index, from ``begins`` on, and count the iterations before it.

    An anchor that is still to come is counted back from by records: at most as many iterations as there were, which
    :func:`place_in_cycle` sets right when it comes.
    """
    numbers = log.view(log.base, log.end).numbers
    place = int(np.searchsorted(numbers, anchor.record))
    known = place < numbers.shape[0] and int(numbers[place]) == anchor.record
    if known and anchor.period_calls == lag:
        begins += (log.base + place - begins) % lag
        passed = (begins - (log.base + place)) // lag
    else:
        passed = (int(numbers[begins - log.base]) - anchor.record) // lag
    return begins, max(0, anchor.iteration - 1 + passed)


def is_ahead(anchor: Anchor, log: CallLog, lag: int) -> bool:
    """Check whether the anchor's record is still to come, in cycles of as many calls."""
    return anchor.record > int(log.view(log.end - 1, log.end).numbers[0]) and anchor.period_calls == lag


def place_in_cycle(anchor: Anchor, log: CallLog, start: int, lag: int) -> int | None:
    """Find the anchor's record in the cycle that begins at ``start``; 0 if it was missed, None if it is still to come.

    Where the earlier reader's cycles begin, those of the present reader begin from then on.
    """
    numbers = log.view(start, start + lag).numbers
    places = np.flatnonzero(numbers == anchor.record)
    if places.shape[0]:
        return int(places[0])
    return None if int(numbers.min()) <= anchor.record else 0
