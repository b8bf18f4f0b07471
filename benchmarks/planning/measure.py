"""Medians of repeated calls, and Markdown."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

LEAST_SECONDS: Final = 0.3  # of repetitions of one case
MOST_CALLS: Final = 200


def median_ms(call: Callable[[], object]) -> tuple[float, float]:
    """Return median wall and CPU time of a call [ms]; the first call warms up. On a shared machine CPU time counts."""
    call()
    gc.collect()
    wall: list[float] = []
    cpu: list[float] = []
    while (sum(wall) < LEAST_SECONDS * 1e3 and len(wall) < MOST_CALLS) or len(wall) < 3:
        cpu_start, wall_start = time.process_time_ns(), time.perf_counter_ns()
        call()
        wall.append((time.perf_counter_ns() - wall_start) / 1e6)
        cpu.append((time.process_time_ns() - cpu_start) / 1e6)
    return statistics.median(wall), statistics.median(cpu)


def figure(value: float) -> str:
    """Return three significant digits without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table under a heading."""
    lines = [f"### {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [figure(cell) if isinstance(cell, float) else str(cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
