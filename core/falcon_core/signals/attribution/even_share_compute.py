"""Convert the computation of a rank to the even share of micro-batches, whatever its share is (docs/adr/0070).

A comparison of computations needs equal work. A ratio of shares would be wrong by the part that does not depend on the
share, such as the optimizer. So a rank's script reports what one of its micro-batches takes. What the rank has more or
fewer than the even share is subtracted or added. A script cannot time its passes if they contain waiting for other
ranks, or run on a device. Then the calls of a pipeline may show the time (``pipeline_passes``). Otherwise the ratio of
shares is used.

An iteration ends where its cycle of calls begins again, and calls are made in a rank's last micro-batch or between two
steps. So the micro-batches in an iteration are nearly all of the step that began last before the iteration's end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from falcon_core.signals.attribution.pipeline_passes import micro_batch_ns
from falcon_core.signals.iterations.segmenter import Iteration
from falcon_core.wire.reporting.microbatches import MicrobatchReport, MicroShare, Turn
from falcon_core.wire.ring import RecordArray

_MOST_NS = 1 << 60  # sums of a few still have 64 bits


class Shares:
    """A rank's shares as far as they are known: none, until its script reports one."""

    def __init__(self) -> None:
        self.said: MicrobatchReport | None = None
        self._cut_at: Turn | None = None  # the turn of the newest records

    def micro_ns(self, iteration: Iteration) -> int | None:
        """Return the time of a micro-batch in an iteration [ns], by its calls; None if the script times its passes."""
        said = self.said
        if said is None or said.timed:
            return None
        return micro_batch_ns(iteration, _turn(said, iteration.end_ns).share)

    def evened_ns(self, compute_ns: int | None, end_ns: int, micro_ns: int | None = None) -> int | None:
        """Return the computation with the even share [ns], for an iteration that ended at ``end_ns``.

        ``micro_ns``: what a micro-batch took in it, by its calls.
        """
        said = self.said
        if said is None or compute_ns is None:
            return compute_ns
        share, micro_ns = _turn(said, end_ns).share, said.micro_ns if said.timed else micro_ns
        if micro_ns is None:
            return compute_ns if said.timed else min(_MOST_NS, compute_ns * said.per_rank // share)
        missing_ns = (said.per_rank - share) * micro_ns
        return max(0, compute_ns + max(-_MOST_NS, min(_MOST_NS, missing_ns)))

    def moved(self, end_ns: int) -> bool:
        """Check whether shares were uneven in an iteration, so that nothing about health is to be learned from it."""
        return self.said is not None and not _turn(self.said, end_ns).even

    def cut(self, records: RecordArray) -> Iterator[RecordArray]:
        """Cut the next records where the share has changed, however late they are read; yield at least one part.

        Only where another share means other calls in an iteration: where each rank is a replica, it does not.
        """
        said = self.said
        turns = [] if said is None or said.timed or said.same_calls else said.turns
        if self._cut_at is None:
            self._cut_at = turns[-1] if turns else None
        for turn in turns:
            if self._cut_at is not None and turn.since_ns > self._cut_at.since_ns and turn.share != self._cut_at.share:
                # By time: the rank says when its share changed, and not at which record.
                begun = np.flatnonzero(records["t_start_ns"] >= turn.since_ns)
                before = int(begun[0]) if len(begun) else len(records)
                yield records[:before]
                self._cut_at, records = turn, records[before:]
        yield records

    def reported(self, by_calls_ns: int | None = None) -> MicroShare | None:
        """Return the report of the newest step. ``by_calls_ns``: time of a micro-batch in the newest ones."""
        said = self.said
        if said is None:
            return None
        return MicroShare(
            per_rank=said.per_rank,
            share=said.turns[-1].share,
            micro_ns=said.micro_ns if said.timed else by_calls_ns,
            timed=said.timed or by_calls_ns is not None,
            hindrance=said.hindrance,
        )


def _turn(said: MicrobatchReport, end_ns: int) -> Turn:
    """Return the turn that held before ``end_ns``; the oldest that is known where that is even older."""
    return next((turn for turn in reversed(said.turns) if turn.since_ns <= end_ns), said.turns[0])
