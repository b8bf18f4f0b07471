"""Measure how much longer the calls of each communicator take now than when the rank was healthy."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from falcon_core.judgement import JUDGEMENT
from falcon_core.signals.attribution.compute_and_wait import measured_comms, sum_by_comm
from falcon_core.signals.attribution.measured import Measured
from falcon_core.signals.calls.stream import Ints
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS


def median_excess(measured: Sequence[Measured], comms: Ints) -> dict[int, tuple[float, ...]]:
    """Return medians over these iterations, ns, by communicator id, except for those without a healthy baseline.

    ``comms``: the communicator's id by token. The parts are those of ``Excess.by_comm``.
    """
    by_comm: dict[int, list[tuple[float, ...]]] = {}
    for sample in measured:
        if sample.excess is None:
            continue
        for comm, excess in sample.excess.by_comm(measured_comms(sample.iteration, comms)).items():
            samples = by_comm.setdefault(comm, [])
            if samples and len(samples[0]) != len(excess):
                samples.clear()  # from here on, calls at other places of the cycle are this communicator's
            samples.append(excess)
    return {
        comm: tuple(statistics.median(part) for part in zip(*parts, strict=True)) for comm, parts in by_comm.items()
    }


def healthy_calls(measured: Sequence[Measured], comms: Ints) -> dict[int, tuple[float, ...]]:
    """Return the time [ns] of the calls of an iteration while the rank is healthy, by communicator id.

    Empty while that is being learned. ``comms`` and the parts are those of ``median_excess``.
    """
    for sample in reversed(measured):
        if sample.excess is not None and sample.healthy is not None:
            return sum_by_comm(sample.healthy[0], measured_comms(sample.iteration, comms))
    return {}


def least_excess(measured: Sequence[Measured], width: int, comms: Ints) -> dict[int, tuple[float, ...]]:
    """Return the least of the medians over the newest windows of ``width`` iterations, ns, by communicator id.

    Empty until the windows are full, and where half of a window is not known.
    """
    windows = max(1, min(JUDGEMENT.lasting_windows, RECENT_ITERATIONS // width))
    newest = measured[-windows * width :]
    if len(newest) < windows * width:
        return {}
    cut = [newest[at : at + width] for at in range(0, len(newest), width)]
    # A median of less than half of a window says nothing about the window.
    if any(2 * sum(each.excess is not None for each in window) <= width for window in cut):
        return {}
    windows_ns = [median_excess(window, comms) for window in cut]
    return {
        comm: tuple(min(parts) for parts in zip(*(window[comm] for window in windows_ns), strict=True))
        for comm in windows_ns[0]
        # Calls that differ in number from window to window cannot be compared place by place.
        if len({len(window.get(comm, ())) for window in windows_ns}) == 1
    }
