"""Quantities, and which pods are Guaranteed; the API server's own judgement is in tests/integration/api."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from falcon_operator.manifests.qos import is_guaranteed, quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        (4, 4),
        ("500m", Decimal("0.5")),
        ("1.5", Decimal("1.5")),
        (".5", Decimal("0.5")),
        ("2Gi", 2 << 30),
        ("1e3", 1000),
        ("3k", 3000),
        ("1E", 10**18),
        ("250u", Decimal("0.00025")),
    ],
)
def test_a_quantity(text: str | int, value: Decimal | int) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "two", "1 Gi", "-1", "5mm", "1.2.3", "."])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


@pytest.mark.parametrize(
    "resources",
    [
        {},
        {"limits": {"cpu": "4"}},
        {"limits": {"cpu": "4", "memory": "nonsense"}},
        {"limits": {"cpu": "0", "memory": "0"}},
        {"limits": {"cpu": "4", "memory": "1Gi"}, "requests": {"memory": "1023Mi"}},
    ],
)
def test_what_is_not_guaranteed(resources: dict[str, Any]) -> None:
    assert not is_guaranteed({"containers": [{"name": "t", "resources": resources}]})


def test_a_container_that_says_nothing_spoils_a_guaranteed_pod() -> None:
    whole = {"name": "t", "resources": {"limits": {"cpu": "4", "memory": "1024Mi"}, "requests": {"memory": "1Gi"}}}
    assert is_guaranteed({"containers": [whole]})
    assert not is_guaranteed({"containers": [whole], "initContainers": [{"name": "i"}]})
    assert not is_guaranteed({"containers": [whole, {"name": "s", "resources": None}]})
