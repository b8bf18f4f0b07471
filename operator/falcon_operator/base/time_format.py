"""Parse and write times: Kubernetes durations (``90s``, ``1h30m``), shares of time, RFC 3339 stamps, times of day."""

from __future__ import annotations

import datetime as dt
import re

_UNITS_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|h|m|s))+")
_PERCENT = re.compile(r"\d{1,3}(?:\.\d{1,2})?%")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")


def parse_duration(text: str) -> float:
    """Return the duration in seconds. Raises ValueError for anything but a duration."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is no duration: write for example 90s, 30m or 1h30m")
    return sum(float(number) * _UNITS_SECONDS[unit] for number, unit in _PART.findall(text))


def parse_percent(text: str) -> float:
    """Return a share of at most 1. Raises ValueError for anything but such a percentage."""
    if not _PERCENT.fullmatch(text) or float(text[:-1]) > 100:
        raise ValueError(f"{text!r} is no percentage: write for example 1% or 0.5%")
    return float(text[:-1]) / 100


def timestamp(unix_seconds: float) -> str:
    """Return the time as RFC 3339 in whole seconds, as Kubernetes writes it."""
    return dt.datetime.fromtimestamp(int(unix_seconds), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix_seconds(stamp: str) -> float:
    """Convert an RFC 3339 time to unix seconds; 0 for an empty one."""
    return dt.datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def clock_time(unix_seconds: float) -> str:
    """Return the time of day for a sentence, in UTC."""
    return dt.datetime.fromtimestamp(int(unix_seconds), dt.UTC).strftime("%H:%M:%S")
