"""Describe the mistakes in a process's environment variables: one line each, with its name and the remedy.

Operator and agent read ``FALCON_*`` with pydantic-settings, which finds all mistakes at once; this module describes
them. A pod that restarted once for each mistake would waste a person's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from falcon_core.text import clip

PREFIX = "FALCON_"
EXIT_CONFIG = 78  # sysexits.h EX_CONFIG
_MOST_SHOWN = 120  # characters of a value
_UNSET = ("missing", "string_too_short")


def describe(errors: Sequence[Mapping[str, Any]], wanted: Mapping[str, str | None], unset: str) -> str:
    """Describe the errors of pydantic's ``ValidationError.errors()``, one line for each.

    ``wanted``: what to write, by the field's name, where a type's own check refused the value ("a whole number from 0
    to 9"); a check of this project names the remedy itself. ``unset``: the remedy for a variable that is not set.
    """
    return "\n".join(_line(error, wanted, unset) for error in errors)


def addresses(raw: object) -> tuple[str, ...]:
    """Split host:port, several separated by commas. Raises ValueError, with what to write, for anything else."""
    found = tuple(part.strip() for part in str(raw).split(",") if part.strip())
    if not found or not all(map(_is_address, found)):
        raise ValueError("write host:port, several separated by commas")
    return found


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16


def _line(error: Mapping[str, Any], wanted: Mapping[str, str | None], unset: str) -> str:
    field = str(error["loc"][0])
    name = field if field.startswith(PREFIX) else PREFIX + field.upper()
    if error["type"] in _UNSET:
        return f"{name} is not set: {unset}"
    own = error.get("ctx", {}).get("error")
    remedy = own or f"write {wanted.get(field) or 'another value'}"
    return f"{name}={clip(repr(error['input']), _MOST_SHOWN)}: {remedy}"
