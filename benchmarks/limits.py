"""Figures that are promised, and whether they are kept."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, and what it may be at most."""

    what: str
    measured: float
    most: float
    unit: str = ""

    @property
    def kept(self) -> bool:
        return self.measured <= self.most

    def row(self) -> str:
        """Return the figure as a line of the table of ``table``."""
        answer = "yes" if self.kept else "**no**"
        return f"| {self.what} | {self.measured:.3g} {self.unit} | {self.most:.3g} {self.unit} | {answer} |"


def table(limits: Sequence[Limit]) -> str:
    """Return the figures as a Markdown table."""
    return "\n".join(["| | measured | at most | kept |", "|---|---|---|---|", *(limit.row() for limit in limits), ""])
