"""Define the output of the benchmark executor (``agent/falcon_bench``) for a machine. Its values are not bounded."""

from __future__ import annotations

import msgspec


class Device(msgspec.Struct):
    """A device of the machine."""

    name: str = ""


class Printed(msgspec.Struct):
    """The object that the executor prints. Rates are in TFLOP/s and GB/s."""

    backend: str = ""
    scores: dict[str, float] = {}
    devices: list[Device] = []
    problems: list[str] = []
    skipped: dict[str, str] = {}
