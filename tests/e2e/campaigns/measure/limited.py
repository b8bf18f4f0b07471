"""Judge the figures of a measurement: by their limits, and by what was not as expected."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import limits as limits_table
from benchmarks.limits import Limit
from evaluation.harness import Measure, Table


def limited(text: str, limits: Sequence[Limit], problems: Sequence[str] = ()) -> Table:
    """Return the table of the limits, then the text and a line for each problem. No problem is allowed."""
    parts = [limits_table.table(limits)] if limits else []
    said = "".join(f"- {problem}\n" for problem in problems)
    measures = [Measure(limit.what, limit.measured, limit.most, most=True, form=".3g") for limit in limits]
    measures.append(Measure("what was not as expected", len(problems), 0, most=True, form=".0f"))
    return Table("\n".join([*parts, text, *([said] if said else [])]), measures)
