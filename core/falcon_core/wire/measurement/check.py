"""Define the result of a check of a pod's machine, as it crosses the bus.

The benchmark executor (``agent/falcon_bench``) prints one object of JSON in the training container. Its rates are in
TFLOP/s and GB/s, of the pod's slowest device. A training process may have written the file instead: everything is
bounded.
"""

from __future__ import annotations

import math
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from falcon_core.wire.measurement.check_links import LinksReport
from falcon_core.wire.measurement.printed_check import Device, Printed

MAX_TEXT: Final = 256
MOST_KINDS: Final = 16
MOST_PROBLEMS: Final = 8
MOST_DEVICES: Final = 64
_MICRO: Final = 1_000_000

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class CheckReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A pod's result. ``micros``: rates by kind, in millionths of the executor's unit, the higher the better."""

    number: Count  # the plan's
    why: Text = ""  # why nothing was measured; empty: it was
    backend: Text = ""
    devices: Text = ""  # their names and how many there are of each: only equal machines are compared
    micros: Annotated[dict[Text, Count], Meta(max_length=MOST_KINDS)] = {}
    problems: Annotated[list[Text], Meta(max_length=MOST_PROBLEMS)] = []  # what the devices did wrongly
    skipped: Annotated[dict[Text, Text], Meta(max_length=MOST_KINDS)] = {}  # kinds of work that were not done: why
    links: LinksReport | None = None  # None: the agent or the launcher is of a version that measures none


def read_printed(number: int, text: bytes) -> CheckReport:
    """Read what the executor printed: the last line counts. What cannot be read becomes the report's ``why``."""
    lines = text.strip().splitlines()
    try:
        printed = msgspec.json.decode(lines[-1] if lines else b"", type=Printed)
    except (msgspec.DecodeError, RecursionError) as error:
        return CheckReport(number, why=f"the benchmark printed no result: {error}"[:MAX_TEXT])
    return bounded(number, printed)


def bounded(number: int, printed: Printed) -> CheckReport:
    """Return the printed result as a report."""
    if not printed.scores and not printed.problems:
        return CheckReport(number, why="the benchmark measured nothing")
    return CheckReport(
        number,
        "",
        printed.backend[:MAX_TEXT],
        _names(printed.devices),
        {
            kind[:MAX_TEXT]: round(rate * _MICRO)
            for kind, rate in list(printed.scores.items())[:MOST_KINDS]
            if math.isfinite(rate) and 0 <= rate < 1e12
        },
        [problem[:MAX_TEXT] for problem in printed.problems[:MOST_PROBLEMS]],
        {kind[:MAX_TEXT]: why[:MAX_TEXT] for kind, why in list(printed.skipped.items())[:MOST_KINDS]},
    )


def _names(devices: list[Device]) -> str:
    names = [device.name for device in devices[:MOST_DEVICES]]
    return ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names)))[:MAX_TEXT]
