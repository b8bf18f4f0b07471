"""Find code that changes the phase of a slowdown without the functions for it (ADR 125). ``dev.limits`` refuses it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, get_args, get_type_hints

from falcon_core.recovery.model.slowdown import SlowIncident

OWNER: Final = "core/falcon_core/recovery/model/slowdown.py"  # has the functions
FIRST: Final = "Suspected"  # in which a slowdown may be opened
PHASES: Final = get_args(get_type_hints(SlowIncident)["phase"])


def phase_changes(source: str) -> Iterator[tuple[str, str]]:
    """Yield each call in a module of the recovery that sets a slowdown's phase: its text, and what to do."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            opens = _name(node.func) == SlowIncident.__name__
            given = [keyword.value for keyword in node.keywords if keyword.arg == "phase"]
            if any(not _is_allowed(value, opens=opens) for value in given):
                remedy = "use detected, located, mitigating or checking of recovery.model.slowdown"
                yield f"{_name(node.func)}(phase={ast.unparse(given[0])})", remedy


def _is_allowed(value: ast.expr, *, opens: bool) -> bool:
    """Check whether a value of ``phase`` is a slowdown's first phase, or a phase of something else, as of a probe."""
    if not isinstance(value, ast.Constant):
        return False  # it may become any phase
    return value.value == FIRST if opens else value.value not in PHASES


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
