"""Say of which findings the model may think otherwise. Importing this needs no NumPy, as importing the model does."""

from __future__ import annotations

import functools
from typing import Final

from falcon_core.errors.table import Table, shipped

NONE: Final = ""  # the class of lines that are no fault


@functools.cache
def open_rules() -> frozenset[str]:
    """Return the shipped rules whose finding may be overruled: no exact ones, which numbers or certain words make."""
    return frozenset(rule.id for rule in shipped().rules if not (rule.certain or rule.xids))


@functools.cache
def costly_classes() -> frozenset[str]:
    """Return the shipped classes of which one node's error costs that node."""
    return frozenset(known.name for known in shipped().classes if known.costs_node)


def may_judge(table: Table) -> bool:
    """Check whether lines may be judged by likeness under a table.

    Where a platform's owner has disabled rules, the model could bring back what the owner does not want.
    """
    return {rule.id for rule in table.rules} >= open_rules()
