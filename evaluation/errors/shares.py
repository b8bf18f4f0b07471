"""Say which share of some lines or trials was judged rightly, and whether its limit is kept."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evaluation.harness import Measure, Table


class Share(msgspec.Struct, frozen=True):
    """Hold a count of some, and the limit of its share: the least, or with ``most`` the greatest."""

    what: str
    right: int
    of: int
    limit: float
    most: bool = False

    def measure(self) -> Measure:
        """Return the share. Where there is nothing to judge, the limit is kept."""
        value = self.right / self.of if self.of else self.limit
        return Measure(self.what, value, self.limit, most=self.most, form=".2%")

    @property
    def kept(self) -> bool:
        return self.measure().kept

    def row(self) -> str:
        """Return a row of a part's table."""
        share = f"{self.right / self.of:.2%}" if self.of else "–"
        return f"| {self.what} | {self.right} of {self.of} | {share} | {'≤' if self.most else '≥'} {self.limit:.2%} |"


def shares(found: Sequence[Share], head: str = "") -> Table:
    """Make the table of some shares; ``head`` stands above it."""
    rows = ["| measure | count | share | limit |", "|---|---|---|---|", *(share.row() for share in found)]
    return Table("\n".join([head, "", *rows] if head else rows), [share.measure() for share in found])
