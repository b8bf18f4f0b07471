"""Classify how much of a rank's work its calls show: only known work lets a longer computation blame the machine.

- ``Fixed``: all sizes recur, and no call spreads data over the ranks. Each iteration has the same work.
- ``InBytes``: sizes vary, and the rank's computation follows them. Its times are reported as they would be at the usual
  bytes (``expected``), so that what has grown nevertheless is not its work. If an all-to-all spreads the data, its
  sizes are among those that vary: a rank that gets more tokens to work on sends more of them back.
- ``Hidden``: the work may depend on the data and no size shows it. Experts padded to one size compute longer or shorter
  behind calls that are always the same; sizes that vary may have nothing to do with what is computed.

With NCCL an all-to-all is often made of sends and receives. A pipeline's stage sends to its neighbour stages. A rank
that sends to three peers or more in a communicator spreads data.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import numpy as np

from falcon_core.signals.calls.stream import Flags, Trait
from falcon_core.signals.changepoint.expected_time import Slope
from falcon_core.signals.iterations.segmenter import Iteration
from falcon_core.signals.iterations.variable_sizes import Varying
from falcon_core.wire.reporting.messages import Work, size_class
from falcon_core.wire.ring import Op, RecordArray

_SPREAD_PEERS = 3
_WINDOW = 8192  # records after which the count of peers restarts: what a job sends at its start is no iteration


class Peers:
    """To how many ranks the sends of a rank go. The same records give the same answer in whatever reads they come."""

    def __init__(self) -> None:
        self._peers: dict[int, set[int]] = {}  # by communicator, in the present window
        self._records = 0  # of the window
        self._many_before = False  # in the window before

    @property
    def many(self) -> bool:
        """Check whether the rank sends to enough peers in one communicator to count as spreading data."""
        return self._many_before or self._many

    @property
    def _many(self) -> bool:
        return any(len(peers) >= _SPREAD_PEERS for peers in self._peers.values())

    def feed(self, records: RecordArray) -> None:
        """Take records of any kind, in ring order: [n], dtype RECORD_DTYPE."""
        at = 0
        while at < len(records):
            part = records[at : at + _WINDOW - self._records]
            at += len(part)
            self._records += len(part)
            self._count(part[part["op"] == Op.SEND])
            if self._records == _WINDOW:
                self._many_before = self._many
                self._peers.clear()
                self._records = 0

    def _count(self, sends: RecordArray) -> None:
        if len(sends):
            for comm, peer in set(zip(sends["comm"].tolist(), sends["peer_or_root"].tolist(), strict=True)):
                self._peers.setdefault(comm, set()).add(peer)


def work_of(iteration: Iteration | None, varying: Varying | None, computation: Slope | None, peers: Peers) -> Work:
    """Return the kind of work that the calls of an iteration show.

    ``varying``: the sizes that its period ignores. ``computation``: how the rank's computation follows its bytes.
    """
    if iteration is None:
        return "Fixed"
    calls = iteration.calls
    spread: Flags = calls.has(Trait.SPREADS)
    if peers.many:
        spread = spread | calls.has(Trait.SENDS)
    # Calls that spread data over ranks can hide how much there is: their bytes are padded to one size.
    if varying is None:
        return "Hidden" if spread.any() else "Fixed"
    if computation is None or computation.per_byte <= 0.0:
        return "Hidden"
    varies = varying.tokens(calls) < 0
    return "Hidden" if spread.any() and not np.any(spread & varies) else "InBytes"


def usual_size(iterations: Iterable[Iteration]) -> int | None:
    """Return the class (``wire.messages.size_class``) of the bytes of most of these iterations; None where none is."""
    sizes = [iteration.bytes for iteration in iterations if not iteration.interrupted]
    return size_class(statistics.median_low(sizes)) if sizes else None
