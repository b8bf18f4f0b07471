"""Kubernetes duration strings: ``90s``, ``30m``, ``1h30m``."""

from __future__ import annotations

import re

_UNITS_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|h|m|s))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")


def parse_duration(text: str) -> float:
    """Seconds; raises ValueError for anything but a duration."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is no duration: write for example 90s, 30m or 1h30m")
    return sum(float(number) * _UNITS_SECONDS[unit] for number, unit in _PART.findall(text))
