"""Write the tables of a run of failures: figures beside their limits, and a line for each fault."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from benchmarks.limits import Limit
from tests.e2e.campaigns.failures import CUT_SHORT, HANGS, KILLED, NODE_KILLED, RAISED, Kind
from tests.e2e.campaigns.outcome import Outcome

HANG_SECONDS: Final = 10.0
MOST_SECONDS: Final = {KILLED.name: 0.5, RAISED.name: 0.3, NODE_KILLED.name: 5.0}


def limits(outcomes: Sequence[Outcome]) -> list[Limit]:
    """Compare how soon each kind of fault was known with what is promised; a fault never known counts as infinite."""
    found: list[Limit] = []
    for name, most in MOST_SECONDS.items():
        found += _median_and_worst(f"{name}: known", [outcome.known for outcome in _of(name, outcomes)], most)
    for hang, cut_short in zip(HANGS, CUT_SHORT, strict=True):
        named = [outcome.named for outcome in outcomes if outcome.name in (hang.name, cut_short.name)]
        found += _median_and_worst(f"{hang.name}: shown in the condition Ready", named, HANG_SECONDS)
    return found


def _of(name: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.name == name]


def _median_and_worst(what: str, seconds: Sequence[float | None], most: float) -> list[Limit]:
    if not seconds:
        return []
    known = [float("inf") if value is None else value for value in seconds]
    return [
        Limit(what=f"{what}, median of {len(known)}", measured=statistics.median(known), most=most, unit="s"),
        Limit(what=f"{what}, worst", measured=max(known), most=most, unit="s"),
    ]


def summary(outcomes: Sequence[Outcome], kinds: Sequence[Kind]) -> str:
    """Return a table of the kinds that came alone: medians and worst, seconds since the fault."""
    lines = [
        "| fault | times | noticed | known | action ordered | all ranks train again | as expected |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_kind_line(kind.name, chosen) for kind in kinds if (chosen := _of(kind.name, outcomes))]
    return "\n".join([*lines, ""])


def _kind_line(name: str, outcomes: Sequence[Outcome]) -> str:
    right = sum(not outcome.problems for outcome in outcomes)
    cells = (
        name,
        str(len(outcomes)),
        _spread([outcome.noticed for outcome in outcomes]),
        _spread([outcome.known for outcome in outcomes]),
        _spread([outcome.acted for outcome in outcomes]),
        _spread([outcome.resumed for outcome in outcomes]),
        f"{right} of {len(outcomes)}",
    )
    return f"| {' | '.join(cells)} |"


def _spread(seconds: Sequence[float | None]) -> str:
    known = [value for value in seconds if value is not None]
    return f"{statistics.median(known):.2f} ({max(known):.2f})" if known else "–"


def faults(outcomes: Sequence[Outcome]) -> str:
    """Return a line for each fault, and below the table what was not as expected."""
    lines = [
        "| | fault | ranks | known, s | done | trains again, s | diagnosis | right |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {number} {line(outcome)}" for number, outcome in enumerate(outcomes, start=1)),
        "",
    ]
    wrong = [
        f"- {number}, {outcome.name}: {'; '.join(outcome.problems)}"
        for number, outcome in enumerate(outcomes, start=1)
        if outcome.problems
    ]
    return "\n".join([*lines, *(["Not as expected:", "", *wrong, ""] if wrong else ["All as expected.", ""])])


def line(outcome: Outcome) -> str:
    """Return one fault as the end of a table's line."""
    cells = (
        outcome.name,
        ", ".join(str(rank) for rank in outcome.ranks),
        _seconds(outcome.known),
        f"{outcome.action}, {_seconds(outcome.acted)} s" if outcome.action else "–",
        _seconds(outcome.resumed),
        ", ".join(outcome.diagnoses) or "–",
        "**no**" if outcome.problems else "yes",
    )
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
