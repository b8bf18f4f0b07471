"""Write times, durations and iteration times as people read them; all times are UTC."""

from __future__ import annotations

import datetime as dt
import re

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def duration(text: str) -> float:
    """Return the seconds of ``90s``, ``30m`` or ``1h30m``. Raises ValueError for anything else."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration: write for example 90s, 30m, 1h30m or 2d")
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(text))


def unix(stamp: str) -> float:
    """Convert the RFC 3339 time at the beginning of a text to unix seconds; 0 where there is none."""
    try:
        return dt.datetime.fromisoformat(stamp.split(" ", 1)[0]).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def stamp(unix_seconds: float) -> str:
    """Return a time as ``2026-11-20 12:04:10``."""
    return _utc(unix_seconds).strftime("%Y-%m-%d %H:%M:%S")


def clock(unix_seconds: float) -> str:
    """Return the time of day as ``12:04:10``."""
    return _utc(unix_seconds).strftime("%H:%M:%S")


def _utc(unix_seconds: float) -> dt.datetime:
    """Return the time; the first or the last that can be written where it is beyond."""
    return dt.datetime.fromtimestamp(min(max(unix_seconds, 0.0), 253_402_300_799.0), dt.UTC)


def span(seconds: float) -> str:
    """Return a duration in its two largest units: ``8.3 s``, ``42 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for large, small, unit, part in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def iteration(microseconds: float) -> str:
    """Return an iteration time as ``612 ms`` or ``12.3 s``."""
    return f"{microseconds / 1e3:.0f} ms" if microseconds < 10e6 else f"{microseconds / 1e6:.1f} s"


def counted(count: int, noun: str) -> str:
    """Return ``1 restart`` or ``2 restarts``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
