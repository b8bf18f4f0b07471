"""Compute the bytes that a job's spec requests, and check whether a pod has room for them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from falcon_operator.manifests.qos import quantity

MISFIT_REMEDY: Final = "raise spec.template.spec.resources.limits.memory by as much, or ask for less"


def amount(text: str | None) -> int:
    """Return an amount in bytes; 0 where none is given. Raises ValueError where the text is no quantity."""
    return 0 if text is None else int(quantity(text))


def not_a_quantity(text: str | None) -> str:
    """Return why a text is no quantity; "" where it is one, or none is given."""
    try:
        amount(text)
    except ValueError as error:
        return str(error)
    return ""


def does_not_fit(pod: Mapping[str, Any], asked: Decimal, words: str) -> str:
    """Return why memory does not fit into a pod's own limit, in which ``words`` names it; "" where it does.

    ``pod``: its spec. Where the limit is no quantity, the API server says so.
    """
    limits = (pod.get("resources") or {}).get("limits") or {}
    limit = limits.get("memory") if isinstance(limits, dict) else None
    if limit is None or not_a_quantity(limit) or asked < quantity(limit):
        return ""
    return f"{words} does not fit into the pod's limit of {limit}, out of which the trainer has to live, too"
